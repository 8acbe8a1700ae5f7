"""What the issuer costs, beside what else a program could use: `make bench`, or `python -m tests.bench --help`.

Not part of the tests: nothing here fails for being slow. A row (strict.py, local.py, ...) yields figures; each comes
from several rounds in which the contenders take turns, and what is asked of us is asked of their ratio.
"""
