"""The ServerApp. Flower starts it for every run and gives it the run's folder, nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedptr.engines.flower.patches.checked_pulls import check_pulls
from fedptr.engines.flower.patches.pull_pauses import shorten_pull_pauses
from fedptr.engines.flower.server import status_file
from fedptr.engines.flower.server.deployed_run import serve_run
from fedptr.engines.flower.server.end_with_superlink import end_with_superlink
from fedptr.errors import ClientError, UserError
from fedptr.headline import find_headline

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    shorten_pull_pauses()
    end_with_superlink()
    check_pulls()
    folder = Path(str(context.run_config["folder"]))
    try:
        summary = serve_run(grid, folder)
    except (UserError, ClientError) as error:
        status_file.write_problem(folder, str(error))
        logging.getLogger("flwr").error("fedptr: %s", error)
        raise SystemExit(2) from None
    headline, rounds = find_headline(summary), summary["rounds"]
    score = f"{headline.factor * summary[f'{headline.key}_final']:.{headline.digits}f}{headline.unit}"
    logging.getLogger("flwr").info("fedptr: %d rounds, %s %s: %s", rounds, headline.words, score, folder)
