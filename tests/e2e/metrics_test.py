"""Metrics as Prometheus sees them."""

import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

import harness
from harness import DEMO, Server, need_program, wait_until


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class MetricsTest(unittest.TestCase):
    def test_promtool_finds_nothing_wrong(self):
        promtool = need_program("promtool")
        with Server() as server:
            server.attnctl("generate", "--model-dir", DEMO, "--max-tokens", "5")
            checked = subprocess.run([promtool, "check", "metrics"], input=server.get("/metrics"),
                                     capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_prometheus_scrapes_the_server(self):
        prometheus = need_program("prometheus")
        with Server() as server, tempfile.TemporaryDirectory() as folder:
            server.attnctl("generate", "--model-dir", DEMO, "--max-tokens", "5")
            config = pathlib.Path(folder) / "prometheus.yaml"
            config.write_text(json.dumps({"scrape_configs": [{
                "job_name": "attnserve", "scrape_interval": "1s",
                "static_configs": [{"targets": [server.http]}]}]}))
            port = free_port()
            process = subprocess.Popen(
                [prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                def query(expression):
                    url = (f"http://127.0.0.1:{port}/api/v1/query?"
                           + urllib.parse.urlencode({"query": expression}))
                    try:
                        with urllib.request.urlopen(url, timeout=10) as reply:
                            return json.load(reply)["data"]["result"]
                    except OSError:
                        return []

                wait_until(lambda: [r for r in query('up{job="attnserve"}')
                                    if r["value"][1] == "1"])
                tokens = wait_until(lambda: query("sum(attnserve_tokens_total)"))
                self.assertGreater(float(tokens[0]["value"][1]), 0)
                budget = query("attnserve_kv_budget_bytes")
                self.assertGreater(float(budget[0]["value"][1]), 0)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)

    def test_pages_answer(self):
        with Server() as server:
            self.assertIn("ok", server.get("/healthz").lower())
            server.get("/readyz")  # raises unless it answers 200
            self.assertIn("attnserve_build_info", server.get("/metrics"))
            self.assertIn("metrics", server.get("/"))

    def test_no_session_id_in_any_label(self):
        with Server() as server:
            server.attnctl("generate", "--model-dir", DEMO, "--max-tokens", "3")
            text = server.get("/metrics")
            self.assertNotRegex(text, r"[0-9a-f]{32}")
            self.assertNotIn("session_id", text)


if __name__ == "__main__":
    harness.main()
