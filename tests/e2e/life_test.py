"""Start and stop of the server process."""

import subprocess
import tempfile
import threading
import unittest

import harness
from harness import BIN, DEMO, Server, run


class LifeTest(unittest.TestCase):
    def test_sigterm_ends_with_zero(self):
        with Server() as server:
            self.assertEqual(server.stop(), 0, server.read_log())

    def test_calls_that_run_finish_before_the_end(self):
        with Server() as server:
            results = []

            def story():
                results.append(server.attnctl("bench", "--callers", "2", "--sessions", "2",
                                              "--tokens", "100000", "--json", check=False))

            caller = threading.Thread(target=story)
            caller.start()
            harness.wait_until(lambda: 'attnserve_sessions{state="live"} 2'
                               in server.get("/metrics") or not caller.is_alive())
            self.assertEqual(server.stop(), 0, server.read_log())
            caller.join()
            self.assertNotIn("INTERNAL", results[0].stderr)

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            address = f"unix:{folder}/attnserve.sock"
            with Server(listen=("127.0.0.1:0", address)) as server:
                self.assertIn(address, server.ready)
                listed = run(BIN / "attnctl", "--server", address, "models").stdout
                self.assertIn("demo", listed)

    def test_environment_sets_flags(self):
        with Server(env={"ATTNSERVE_SESSION_TTL": "7s", "ATTNSERVE_THREADS": "1",
                         "ATTNSERVE_MODEL": f"a={DEMO},b={DEMO}"}) as server:
            models = server.attnctl("models").stdout
            self.assertRegex(models, r"(?m)^a\s")
            self.assertRegex(models, r"(?m)^b\s")
            info = server.attnctl_json("info")
            self.assertEqual(info["threadCount"], 1)
            self.assertEqual(info["defaultSessionTtl"], "7s")

    def test_wrong_flags_are_refused_in_one_line(self):
        for arguments in (["--listen", "nonsense"], ["--threads", "0"], ["--model", "x"],
                          ["--kv_budget_bytes", "-5"], ["--session_ttl", "soon"],
                          ["--no_such_flag"]):
            done = subprocess.run([BIN / "attnserve", *arguments], capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(arguments[0].lstrip("-"), done.stderr)

    def test_taken_port_is_refused_in_one_line(self):
        with Server() as first:
            done = run(BIN / "attnserve", "--listen", first.address, "--http", "off", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(f"cannot listen on {first.address}", done.stderr)
            self.assertIn("choose another --listen", done.stderr)

    def test_missing_model_is_refused(self):
        done = subprocess.run([BIN / "attnserve", "--listen", "127.0.0.1:0", "--http",
                               "127.0.0.1:0", "--model", "m=/nowhere"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere", done.stderr)


if __name__ == "__main__":
    harness.main()
