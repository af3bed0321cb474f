"""Starts the real server on free ports and runs the real attnctl against it.

Environment, set by CMakeLists.txt: ATTNSERVE_BIN (folder of the programs), ATTNSERVE_SOURCE (the
repository), ATTNSERVE_SHARED (material beside the repository; tests that need it skip without it).
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

BIN = pathlib.Path(os.environ["ATTNSERVE_BIN"])
SOURCE = pathlib.Path(os.environ["ATTNSERVE_SOURCE"])
SHARED = pathlib.Path(os.environ["ATTNSERVE_SHARED"])
DEMO = SOURCE / "deploy" / "demo_model"

SKIPPED = 77  # what ctest shows as skipped


class Server:
    """A running attnserve; use as a context manager. `arguments` go to the command line."""

    def __init__(self, *arguments, listen=("127.0.0.1:0",), env=None):
        self.arguments = [str(BIN / "attnserve"), "--http", "127.0.0.1:0"]
        for address in listen:
            self.arguments += ["--listen", address]
        self.arguments += [str(argument) for argument in arguments]
        self.env = {**os.environ, **(env or {})}

    def __enter__(self):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            self.arguments, stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.env)
        self.ready = self.process.stdout.readline()
        match = re.match(r"attnserve ready: grpc (\S+).* http (\S+)", self.ready)
        if not match:
            self.process.wait(timeout=60)
            raise AssertionError(f"the server did not start:\n{self.read_log()}")
        self.address, self.http = match.groups()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.log.close()

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as reply:
            return reply.read().decode()

    def attnctl(self, *arguments, check=True):
        return run(BIN / "attnctl", "--server", self.address, *arguments, check=check)

    def attnctl_json(self, *arguments):
        return json.loads(self.attnctl("--json", *arguments).stdout)


def run(*command, check=True, **options):
    """Runs a program, returns the finished process with its output as text."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=900, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n"
                             f"{done.stdout}\n{done.stderr}")
    return done


def wait_until(condition, seconds=60):
    """Polls `condition` until it is true; returns its value, or fails."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing happened within {seconds} s")
        time.sleep(0.1)


def need_shared(path):
    """The path below ATTNSERVE_SHARED; skips the test where it is absent."""
    if not (SHARED / path).exists():
        raise unittest.SkipTest(f"{SHARED / path} is not there")
    return SHARED / path


def need_program(name):
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name)
    if not found:
        raise unittest.SkipTest(f"{name} is not installed (deploy/packages.sh test installs it)")
    return found


def main():
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) == result.testsRun else 0)
