"""`python -m lakestream`: the `lakestream` command, where its script is not on the path."""

from lakestream.cli.main import main

main()
