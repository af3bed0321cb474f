"""Attention over RPC from the command line: the worked example and other people's cases."""

import re
import unittest

import harness
from harness import Server, need_shared

HELLO_SHINY_SUN = "[[[[0.34,0.22,0.54],[0.53,0.34,0.98],[0.29,0.54,0.93]]]]"
SHINY = "[[[[0.53,0.34,0.98]]]]"


class AttendTest(unittest.TestCase):
    def attend(self, server, *arguments):
        text = server.attnctl("attend", "--q", SHINY, "--k", HELLO_SHINY_SUN, "--v",
                              HELLO_SHINY_SUN, "--stages", "scores,weights", *arguments).stdout
        return text, [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]

    def test_worked_example_without_scaling(self):
        with Server() as server:
            text, numbers = self.attend(server, "--scale", "1")
            # Scores and weights exact to the digits printed in textbooks, then the context.
            for expected in (0.7842, 1.3569, 1.2487, 0.22913, 0.40626, 0.36460,
                             0.39896, 0.38542, 0.86095):
                self.assertTrue(any(abs(number - expected) < 6e-6 for number in numbers),
                                f"{expected} is not in\n{text}")

    def test_empty_tensor_is_refused_by_its_option(self):
        with Server() as server:
            for option in ("--q", "--v", "--past-key"):
                given = {"--q": SHINY, "--k": HELLO_SHINY_SUN, option: ""}
                arguments = [text for pair in given.items() for text in pair]
                result = server.attnctl("attend", *arguments, check=False)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(f"{option}: is empty", result.stderr)

    def test_worked_example_with_the_default_scale_differs(self):
        with Server() as server:
            text, numbers = self.attend(server)
            for expected in (0.7842 / 3**0.5, 1.3569 / 3**0.5, 1.2487 / 3**0.5):
                self.assertTrue(any(abs(number - expected) < 6e-5 for number in numbers),
                                f"{expected} is not in\n{text}")
            self.assertFalse(any(abs(number - 0.22913) < 1e-4 for number in numbers), text)

    def test_onnx_cases_pass(self):
        cases = need_shared("conformance/onnx_attention")
        count = len(list(cases.glob("*.safetensors")))
        with Server() as server:
            text = server.attnctl("verify", "--cases", cases).stdout
            self.assertEqual(text.strip().splitlines()[-1], f"{count} passed, 0 failed")
            one = server.attnctl("verify", "--cases", cases / "test_attention_4d.safetensors").stdout
            self.assertEqual(one, "1 passed, 0 failed\n")


if __name__ == "__main__":
    harness.main()
