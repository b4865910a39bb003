"""``python -m graphweft_workers.cli`` is the ``graphweft`` command of the running Python environment."""

from graphweft_workers.cli import main
from graphweft_workers.support.garbage_collection import collect_less_while_loading

if __name__ == "__main__":
    collect_less_while_loading()
    main()
