"""`python -m trifolium` is the `trifolium` command."""

from .cli import main

main()
