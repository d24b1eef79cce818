"""`python -m recsys.evaluate`: runs the stage, see `recsys.evaluation.stage`."""

from recsys.evaluation.stage import main
from recsys.system.process import stage_main

if __name__ == "__main__":
    stage_main(main)
