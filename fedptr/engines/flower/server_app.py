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
    accuracy, rounds = summary["accuracy_final"], summary["rounds"]
    logging.getLogger("flwr").info("fedptr: %d rounds, accuracy %.2f %%: %s", rounds, 100 * accuracy, folder)
