"""`python -m adaptmr` is the command `adaptmr`."""
from adaptmr.cli import main

raise SystemExit(main())
