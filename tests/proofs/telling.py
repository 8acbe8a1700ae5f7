"""A program that tells of itself, a JSON object a line, until its input is closed."""

import json
import subprocess
import sys
import threading
from typing import Any


class Telling:
    """`python -m MODULE ARGUMENTS`, and what it has told. `options`: those of Popen."""

    def __init__(self, module: str, *arguments: str, **options: Any) -> None:
        self.told: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.append(json.loads(line))

    def stop(self) -> None:
        """Let it end in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def join(self) -> None:
        """Wait for its end, and for all that it tells."""
        try:
            self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
            self._listener.join(60)
            for stream in (self._process.stdout, self._process.stdin):
                assert stream is not None
                stream.close()
