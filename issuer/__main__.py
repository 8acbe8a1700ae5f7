"""`python -m issuer`, the same as `issuer`."""

from issuer.cli import main

main(prog_name="issuer")
