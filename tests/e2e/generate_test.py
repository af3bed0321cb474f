"""A client with the rest of a language model, and attention and caches in the server."""

import json
import unittest

import harness
from harness import BIN, DEMO, Server, need_shared, run


class GenerateTest(unittest.TestCase):
    def check(self, model_dir, model_name, *arguments, cached_only=False):
        expected = json.loads((model_dir / "expected_greedy.json").read_text())
        # The published text: the given tokens, without the first (<s>).
        count = str(len(expected["token_ids"]) - 1)
        with Server(*arguments) as server:
            cached = server.attnctl("generate", "--model-dir", model_dir, "--model", model_name,
                                    "--max-tokens", count)
            self.assertEqual(cached.stdout.rstrip("\n"), expected["text"].rstrip("\n"))
            if not cached_only:
                recomputed = server.attnctl("generate", "--model-dir", model_dir, "--model",
                                            model_name, "--max-tokens", count, "--no-cache")
                self.assertEqual(recomputed.stdout.rstrip("\n"), expected["text"].rstrip("\n"))
            self.assertRegex(cached.stderr, r"(?m)^the session held \d+\.\d KiB$")
            sessions = server.attnctl_json("sessions")
            self.assertFalse(sessions.get("sessions"), "generate left a session behind")
            self.assertEqual(server.stop(), 0, server.read_log())

    def test_trained_model_writes_the_published_text(self):
        folder = need_shared("models/stories260k")
        self.check(folder, "stories", "--model", f"stories={folder}")

    def test_demo_model_is_served_by_default(self):
        self.check(DEMO, "demo")

    def test_demo_model_continues_a_prompt(self):
        with Server() as server:
            text = server.attnctl("generate", "--model-dir", DEMO, "--prompt",
                                  "Once upon a time there was a", "--max-tokens", "30").stdout
            self.assertTrue(text.startswith("Once upon a time there was a"), text)
            self.assertGreater(len(text.split()), 12, text)

    def test_model_that_does_not_fit_the_folder_is_refused(self):
        folder = need_shared("models/stories260k")
        with Server() as server:
            refused = server.attnctl("generate", "--model-dir", folder, check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("layer", refused.stderr)

    def test_folder_that_is_not_there_says_what_it_must_hold(self):
        refused = run(BIN / "attnctl", "generate", "--model-dir", "nope", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("nope/config.json", refused.stderr)
        self.assertIn("model.safetensors", refused.stderr)

    def test_one_token_is_singular(self):
        with Server() as server:
            told = server.attnctl("generate", "--model-dir", DEMO, "--max-tokens", "1")
            self.assertIn("with the cache: 1 token in", told.stderr)


if __name__ == "__main__":
    harness.main()
