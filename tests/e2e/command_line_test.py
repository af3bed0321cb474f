"""What attnctl says to a command line or a request that cannot be, and the forms of its answers."""

import os
import unittest

import harness
from harness import BIN, DEMO, Server, run

COMMANDS = ["models", "info", "sessions", "reset", "truncate", "attend", "forward", "create",
            "decode", "generate", "verify", "bench"]


def attnctl(*arguments, **options):
    return run(BIN / "attnctl", *arguments, check=False, **options)


class WrongCommandLineTest(unittest.TestCase):
    def check(self, arguments, *expected, **options):
        done = attnctl(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (2, ""), f"{arguments}: {done.stderr}")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertLess(len(done.stderr), 240, done.stderr)
        for text in expected:
            self.assertIn(text, done.stderr, arguments)

    def test_unknown_command_is_named_and_the_others_listed(self):
        self.check(["modles"], '"modles"', ", ".join(COMMANDS))
        self.check(["--foo"], "--foo", ", ".join(COMMANDS))
        self.check([], "command is missing", ", ".join(COMMANDS))

    def test_server_must_be_an_address(self):
        for address in ("", "nonsense", "host:0", "host:65536", "http://host:1", "unix:"):
            self.check(["--server", address, "models"], f'--server: "{address}"',
                       "expected host:port or unix:/path")
        self.check(["--server=", "models"], "--server", "expected host:port or unix:/path")
        self.check(["models"], "--server", '"bad"', env={**os.environ, "ATTNSERVE_SERVER": "bad"})

    def test_counts_say_their_range(self):
        self.check(["bench", "--tokens", "-1"], "--tokens", "expected 1 or more")
        self.check(["bench", "--prefill", "-1"], "--prefill", "expected 0 or more")
        self.check(["generate", "--model-dir", DEMO, "--max-tokens", "0"], "expected 1 or more")
        self.check(["forward", "--random", "1", "--layer", "x"], "--layer", "expected 0 or more")
        self.check(["truncate", "s", "--length", "-1"], "--length", "expected 0 or more")

    def test_options_that_would_count_for_nothing_are_refused(self):
        self.check(["bench", "--heads", "4"], "--heads requires --core")
        self.check(["bench", "--core", "--layer", "1"], "--core", "excludes", "--layer")
        self.check(["bench", "--core", "--model", "m"], "--core", "excludes", "--model")
        self.check(["sessions", "s", "--ended"], "--ended", "excludes", "ID")

    def test_what_is_missing_is_named(self):
        self.check(["sessions", "--delete"], "--delete requires ID")
        self.check(["decode", "--session", "s1"], "--x", "--random")
        self.check(["forward", "--x", "[[1]]", "--random", "1"], "--x", "--random")
        self.check(["attend", "--q", "[[1]]", "--k", "[[1]]", "--stages", "foo"],
                   '--stages: "foo"', "scores, softcapped")


class HelpTest(unittest.TestCase):
    def test_version_names_the_program(self):
        self.assertRegex(attnctl("--version").stdout, r"^attnctl \d+\.\d+\.\d+\n$")


class MessageLimitTest(unittest.TestCase):
    def test_prefill_of_bench_comes_in_chunks(self):
        with Server("--max_message_bytes", "1MiB") as server:
            bench = server.attnctl_json("bench", "--core", "--heads", "32", "--kv-heads", "8",
                                        "--head-size", "128", "--prefill", "1000", "--tokens", "1")
            self.assertEqual(bench["prefill"], 1000)
            bench = server.attnctl_json("bench", "--prefill", "200", "--tokens", "1")
            self.assertEqual(bench["tokens"], 1)

    def test_message_above_the_limit_says_what_to_do(self):
        with Server("--max_message_bytes", "64KiB") as server:
            done = server.attnctl("forward", "--random", "200", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("RESOURCE_EXHAUSTED", done.stderr)
            self.assertIn("send less at once, or raise the server's --max_message_bytes",
                          done.stderr)


if __name__ == "__main__":
    harness.main()
