"""What attnctl says to a command line or a request that cannot be, and the forms of its answers."""

import os
import unittest

import harness
from harness import BIN, DEMO, Server, run

COMMANDS = ["models", "info", "sessions", "reset", "truncate", "attend", "forward", "create",
            "decode", "generate", "verify", "bench"]
NOWHERE = "127.0.0.1:1"


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

    def test_every_command_says_what_all_take(self):
        for command in COMMANDS:
            done = attnctl(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("--server, --json and --timeout work here too.", done.stdout)


class AnswerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server().__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def fails(self, *arguments):
        done = self.server.attnctl(*arguments, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr

    def test_no_server_says_how_to_get_one(self):
        done = attnctl("--server", NOWHERE, "models")
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"no server answers at {NOWHERE}", done.stderr)
        self.assertIn('start one with "attnserve", or name another with --server', done.stderr)

    def test_deleting_a_session_says_whether_it_was_there(self):
        self.server.attnctl("create", "--session", "s1")
        self.assertEqual(self.server.attnctl_json("sessions", "s1", "--delete"), {"deleted": True})
        self.assertIn('no session is called "s1"', self.fails("sessions", "s1", "--delete"))

    def test_errors_of_fields_name_the_option(self):
        error = self.fails("attend", "--q", "[[1]]", "--k", "[[1]]", "--mask", "[[true],[true]]")
        self.assertIn("masks.attention_mask is what --mask sets", error)

    def test_tensors_in_json_have_values_only(self):
        output = self.server.attnctl_json("attend", "--q", "[[1,2]]", "--k", "[[3,0.5]]")["output"]
        self.assertEqual(output, {"dtype": "DTYPE_F32", "shape": ["1", "1", "1", "2"],
                                  "values": [3, 0.5]})

    def test_bench_beyond_the_model_says_what_to_lower(self):
        error = self.fails("bench", "--tokens", "500")
        self.assertIn("--prefill and --tokens", error)
        self.assertIn("256", error)

    def test_bench_counts_in_words(self):
        text = self.server.attnctl("bench", "--tokens", "1").stdout
        self.assertRegex(text, r"^1 token in .* by 1 caller over 1 session\n")

    def test_unnamed_model_of_several(self):
        with Server("--model", f"mine={DEMO}", "--model", f"two={DEMO}") as server:
            done = server.attnctl("forward", "--random", "1", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("several models are served (mine, two): choose one", done.stderr)
            self.assertIn("--model", done.stderr)


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
