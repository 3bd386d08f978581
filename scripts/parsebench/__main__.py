"""One side of a benchmark, `MODULE:FUNCTION FILE`, as the fresh process that is measured."""

import sys
from pathlib import Path

from parsebench.frame import serve

serve(sys.argv[1], Path(sys.argv[2]))
