"""A client in another language, by reflection and JSON: grpcurl, built from the Go registry."""

import json
import os
import unittest

import harness
from harness import BIN, DEMO, Server, need_program, run

GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.8.9"  # builds with Debian 12's Go
SERVICES = ["attnserve.v1.AttentionService", "attnserve.v1.ModelService",
            "attnserve.v1.SessionService", "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection"]


def grpcurl_program():
    """Builds grpcurl once, into the build folder."""
    folder = BIN.parent / "tools"
    program = folder / "grpcurl"
    if not program.exists():
        go = need_program("go")
        run(go, "install", GRPCURL, env={**os.environ, "GOBIN": str(folder), "GOFLAGS": ""})
    return program


class ForeignClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = grpcurl_program()

    def call(self, server, method, request, check=True):
        done = run(self.program, "-plaintext", "-d", json.dumps(request), server.address, method,
                   check=check)
        return json.loads(done.stdout) if check else done

    def test_services_are_listed(self):
        with Server() as server:
            listed = run(self.program, "-plaintext", server.address, "list").stdout.split()
            for service in SERVICES:
                self.assertIn(service, listed)
            described = run(self.program, "-plaintext", server.address, "describe",
                            "attnserve.v1.DecodeRequest").stdout
            self.assertIn("expected_position", described)

    def test_forward_and_decode_give_the_same_values(self):
        width = json.loads((DEMO / "config.json").read_text())["hidden_size"]
        rows = [[((7 * t + 3 * i) % 11 - 5) / 8 for i in range(width)] for t in range(3)]

        def tensor(part):
            return {"dtype": "DTYPE_F32", "shape": [1, len(part), width],
                    "values": [value for row in part for value in row]}

        with Server() as server:
            prefix = "attnserve.v1."
            whole = self.call(server, prefix + "AttentionService/Forward",
                              {"layer": 0, "x": tensor(rows)})["output"]
            self.assertEqual(whole["shape"], ["1", "3", str(width)])
            session = self.call(server, prefix + "SessionService/CreateSession",
                                {"model": "demo"})["session"]["session_id"]
            steps = []
            for t, row in enumerate(rows):
                reply = self.call(server, prefix + "AttentionService/Decode",
                                  {"session_id": session, "layer": 0, "x": tensor([row]),
                                   "expected_position": t})
                self.assertEqual(int(reply.get("position", 0)), t)
                steps += reply["output"]["values"]
            self.assertEqual(steps, whole["values"])  # the same bits, so the same decimals

            conflict = self.call(server, prefix + "AttentionService/Decode",
                                 {"session_id": session, "layer": 0, "x": tensor(rows[:1]),
                                  "expected_position": 1}, check=False)
            self.assertNotEqual(conflict.returncode, 0)
            self.assertIn("Aborted", conflict.stderr)
            self.assertIn("POSITION_CONFLICT", conflict.stderr)

    def test_health_is_serving(self):
        with Server() as server:
            health = self.call(server, "grpc.health.v1.Health/Check", {})
            self.assertEqual(health["status"], "SERVING")
            service = self.call(server, "grpc.health.v1.Health/Check",
                                {"service": "attnserve.v1.AttentionService"})
            self.assertEqual(service["status"], "SERVING")


if __name__ == "__main__":
    harness.main()
