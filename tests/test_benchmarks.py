"""The benchmarks' references compute what we compute, and their results are written and kept."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from fedptr.core.local_training import draw_batches
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import Classification

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bench
import bench_results
import figure_cheap
import figure_fedptr
import figure_matching
import figure_visits
import our_side
import peer_process
import timing
import workload
from plain_references import train_on_tensors, train_plain_loop, weighted_mean


def eager(width: int, dtype: torch.dtype = torch.float32) -> Classification:
    return Classification(workload.make_network(width).to(dtype), workload.SHAPE, workload.CLASSES)


MODULES = {path.stem for path in Path(bench.__file__).parent.glob("*.py")} - {"peer_blazefl", "peer_flower", "peer_pfl"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_benchmark_can_be_imported(name: str) -> None:
    """But for those that run in the environment of another library."""
    importlib.import_module(name)


def test_unrolled_is_our_gradient() -> None:
    p = our_side.make_matching_problem(3, 5, 4, dtype=torch.float64, make=eager)
    for mine, theirs in zip(p.solve(), figure_matching.unrolled_step(p), strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(theirs), rtol=1e-10, atol=0)


def test_the_plain_loop_is_our_training() -> None:
    x, y = workload.make_images(23)
    order = torch.cat(list(draw_batches(23, 5, Key(0).at("bench")("batch-order"))))
    model = train_plain_loop(
        workload.make_network(3), Subset(TensorDataset(x, y), order.tolist()), 5, lr=0.01, momentum=0.5, shuffle=False
    )
    trained = our_side.train_client(eager(3), Samples(x, y), 5)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert trained.steps == 5
    assert not torch.equal(trained.w, eager(3).init())
    torch.testing.assert_close(trained.w, flat, rtol=1e-5, atol=1e-7)


def test_the_mean_is_weighted() -> None:
    states = [{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}]
    assert weighted_mean(states, [1, 3])["w"].item() == 3


def test_operations_are_counted() -> None:
    macs = 27 * 128 * 32**2 + 9 * 128**2 * (16**2 + 8**2) + 128 * 4**2 * 10
    assert workload.count_forward_flops(workload.make_network(128)) == 2 * macs


def test_the_cost_of_a_round_is_what_its_operations_are() -> None:
    """In forward passes of an image: training has 3, a student step 3, its part of an outer step 9 with the adjoint."""
    train, step, project = 3 * 1000.0, 10 * 100 * 9.0, 5 * 100 * 3.0
    C, D = 2 * step + 3000, 3000.0
    turn = {"A": train, "B": train, "C": C, "D": D, "E": project, "F": train + 2 * (C + project)}
    exact, cheaper = figure_fedptr.SETTINGS
    beside = 20 * step + D + project
    assert figure_fedptr.cost_in_fedavg_rounds(exact.server, exact, turn, 50) == pytest.approx(1 + beside / 150_000)
    assert figure_fedptr.cost_in_fedavg_rounds(exact.client, exact, turn, 50) == pytest.approx(
        1 + 10 * beside / 150_000
    )
    rare = replace(cheaper, client=replace(cheaper.client, H=20, mtt_every=4))
    beside = (20 * step + D) / 4 + project
    assert figure_fedptr.cost_in_fedavg_rounds(rare.client, rare, turn, 50) == pytest.approx(1 + 10 * beside / 150_000)


def test_the_cost_of_rare_matching() -> None:
    turn = {"A": 10.0, "B": 10.0, "P": 11.0, "M": 15.0}
    (server, _), (client, _) = figure_cheap.METHODS  # every second round, and every fourth
    assert figure_cheap.cost_in_fedavg_rounds(server, turn, 10) == pytest.approx(1 + (1 + 4 / 2) / 100)
    assert figure_cheap.cost_in_fedavg_rounds(client, turn, 10) == pytest.approx(1 + 5 * (1 + 4 / 4) / 100)


def test_a_peer_gets_its_clients_samples_as_we_normalise_them(monkeypatch: pytest.MonkeyPatch) -> None:
    work = figure_visits.work_of_peer("logistic regression", 6, 1)
    monkeypatch.setattr(peer_process, "load_work", lambda: work)
    whole = Samples(work["x"], work["y"], mean=torch.tensor(figure_visits.MEAN), std=torch.tensor(figure_visits.STD))
    for i, rows in enumerate(torch.arange(len(work["y"])).chunk(6)):
        x, y = peer_process.client_samples(i)
        mine, labels = whole.part(rows).take(torch.arange(len(rows)))
        torch.testing.assert_close(x, mine)
        assert torch.equal(y, labels)


def test_peers_train_as_the_plain_loop_does() -> None:
    x, y = workload.make_images(23)
    ours = train_plain_loop(workload.make_network(3), TensorDataset(x, y), 5, shuffle=False)
    theirs = train_on_tensors(workload.make_network(3), x, y, batch=5, epochs=1, lr=0.01, momentum=0.5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_everyone_runs_once_before_and_once_in_every_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SIDE", 8)
    calls: list[str] = []
    times = timing.time_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == list("ab") + list("ab") + list("ba") + list("ab")
    assert {name: len(taken) for name, taken in times.items()} == {"gemm": 3, "a": 3, "b": 3}


def test_results_are_written_and_kept(tmp_path: Path) -> None:
    paths = tmp_path / "results.json", tmp_path / "RESULTS.md"
    fast = bench_results.make_row("speed", "plain | loop", [3.0, 2.0, 4.0], "×", bench_results.Goal("≥", 2.5))
    slow = bench_results.make_row("memory", "unrolled", [0.5], "×", bench_results.Goal("≤", 1 / 3))
    bench_results.write_results({"training": bench_results.make_entry([fast], 1.0)}, *paths)
    bench_results.write_results(
        {**bench_results.read_results(paths[0]), "memory": bench_results.make_entry([slow], 2.0)}, *paths
    )
    assert json.loads(paths[0].read_text())["training"]["rows"][0]["ok"] is True
    text = paths[1].read_text()
    assert "| speed | plain \\| loop | 3× | 2.5× – 3.5× | ≥ 2.5× | yes |" in text
    assert "| memory | unrolled | 0.5× | 0.5× – 0.5× | ≤ 0.333× | **no** |" in text
    assert text.count(f"torch {torch.__version__}") == 1


def test_what_cannot_be_measured_is_a_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(peer_process, "PYTHON", Path("/nonexistent"))
    with pytest.raises(peer_process.PeerError, match="not installed"):
        peer_process.Peer("peer_pfl.py", ["{script}"], {})
    monkeypatch.setitem(bench.FIGURES, "nothing", "no such figure")
    (row,) = bench.measure_figure("nothing", bench.Scale(quick=True))
    assert row.value is None
    assert "figure_nothing" in row.note
    assert "not measured" in capsys.readouterr().out
