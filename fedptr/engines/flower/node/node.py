"""A node: its data, its state, and its answers to the server. It lives as long as its process.

    hello      who the node is and what data it has, in numbers and names
    visit      a client's whole round, `fedptr.core.visit.visit_client`, unchanged: an answer, training, or the scores
               of models on the node's own test data, which leave its state as it is

The site of a round is rebuilt here exactly as the in-process engine builds it, so the weights are the same to the bit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch

import fedptr
from fedptr.compute.choose import choose_backend
from fedptr.core.federation import site_of_client, site_of_round
from fedptr.core.method import Site
from fedptr.core.randomness import Key
from fedptr.core.samples import Samples
from fedptr.core.task import ModelTask
from fedptr.core.visit import Purpose, visit_client
from fedptr.data.dataset import dataset_digest
from fedptr.data.to_samples import to_samples
from fedptr.engines.flower.node.node_plan import STATE, NodePlan, load_own_data
from fedptr.engines.flower.node.state_versions import StateVersions
from fedptr.engines.flower.wire.agreement import OF_LABELS, Agreement, Offer, check_offer_fits, translate_dataset
from fedptr.engines.flower.wire.diagnostics import select_small_entries
from fedptr.engines.flower.wire.parcel import PROTOCOL, Parcel
from fedptr.engines.flower.wire.tensors import blocks_to_state, state_to_blocks
from fedptr.errors import ReplyError, UserError
from fedptr.methods import PTR
from fedptr.models.initial_weights import digest_first_model
from fedptr.runs import plan as planning
from fedptr.runs.experiment import choose_device, make_task
from fedptr.runs.plan import Plan
from fedptr.runs.unfinished_work import UnfinishedWork

log = logging.getLogger("fedptr.node")


class Node:
    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.dataset, self.rows, self.held_out, self.test_rows = load_own_data(plan)
        self.size = len(self.dataset.train_y if self.rows is None else self.rows)
        self.tests = len(self.dataset.test_y if self.test_rows is None else self.test_rows)
        self.digest = dataset_digest(self.dataset)
        self.made: tuple[str, Plan, ModelTask, Samples, Samples] | None = None  # for the last experiment

    def answer(self, parcel: Parcel) -> Parcel:
        """With the nonce of the request, by which the server knows that whoever answers is the one it asked."""
        reply = self.answer_or_refuse(parcel)
        return (
            Parcel({**reply.words, "nonce": parcel.words["nonce"]}, reply.blocks) if "nonce" in parcel.words else reply
        )

    def answer_or_refuse(self, parcel: Parcel) -> Parcel:
        """Never raises: the server gets what went wrong, in one sentence."""
        words = parcel.words
        kinds: dict[Any, Callable[[Parcel], Parcel]] = {
            "hello": self.answer_hello,
            "visit": self.answer_visit,
        }
        try:
            if words.get("protocol") != PROTOCOL:
                raise ReplyError(f"speaks protocol {PROTOCOL}, not {words.get('protocol')}; install the same fedptr")
            if words.get("kind") not in kinds:
                raise ReplyError("was asked for something it does not know; install the same fedptr")
            return kinds[words["kind"]](parcel)
        except (UserError, ReplyError) as error:
            return Parcel({"kind": "refused", "reason": str(error)})
        except Exception as error:  # a bug in a model, a full disk, too little memory
            log.exception("round failed")
            return Parcel({"kind": "refused", "reason": f"failed: {type(error).__name__}: {error}"})

    def make_offer(self) -> Offer:
        data = self.dataset
        labels = (data.target, data.label_mean, data.label_std)
        mean, std = tuple(data.mean), tuple(data.std)
        return Offer(self.plan.node.name, self.size, data.classes, data.shape, mean, std, *labels)

    def answer_hello(self, parcel: Parcel) -> Parcel:
        offer = self.make_offer()
        words = {
            "kind": "hello",
            "name": offer.name,
            "number": self.plan.node.number,
            "size": offer.size,
            "tests": self.tests,
            "classes": list(offer.classes),
            "shape": list(offer.shape),
            "mean": list(offer.mean),
            "std": list(offer.std),
            "data": self.make_fingerprint(str(parcel.words.get("experiment", ""))),
            "versions": {"fedptr": fedptr.__version__, "torch": torch.__version__},
        }
        if offer.target != "class":
            words |= {name: getattr(offer, name) for name in OF_LABELS}
        return Parcel(words)

    def make_fingerprint(self, salt: str) -> str:
        """Changes when the data does; differs between experiments, so that nobody recognises the data."""
        mine = [None if rows is None else [int(row) for row in rows] for rows in (self.rows, self.test_rows)]
        return hashlib.sha256(f"{salt} {self.digest} {mine} {self.held_out}".encode()).hexdigest()

    def prepare_experiment(self, words: dict[str, Any]) -> tuple[Plan, ModelTask, Samples, Samples]:
        """The plan, the task and the node's data as agreed; made once per experiment."""
        key = hashlib.sha256(f"{words['plan']}{sorted(words['agreement'].items())}".encode()).hexdigest()
        if self.made is None or self.made[0] != key:
            agreed = Agreement.from_words(words["agreement"])
            check_offer_fits(self.make_offer(), agreed)
            tables = planning.parse_toml(words["plan"])
            self.check_consent(tables)
            plan = self.with_own_files(planning.check_plan(tables))
            device = choose_device(plan.machine.device)
            dataset = translate_dataset(self.dataset, agreed)
            task = choose_backend(plan, make_task(plan, dataset, device), agreed.images)
            train, test = to_samples(dataset, device)
            mine = train if self.rows is None else train.part(torch.tensor(self.rows))
            if self.test_rows is not None:
                test = (train if self.held_out else test).part(torch.tensor(self.test_rows, dtype=torch.long))
            self.made = key, plan, task, mine, test
        return self.made[1:]

    def with_own_files(self, plan: Plan) -> Plan:
        """The plan as this node computes it; the server's paths mean nothing here, and it may not name this node's."""
        own = self.plan.node.init
        model = replace(plan.model, init=str(self.plan.folder / own)) if own and plan.model.init else plan.model
        if not own:
            model = replace(model, init="", init_except="")
        return replace(plan, machine=self.plan.machine, model=model)

    def check_first_model(self, task: ModelTask, digest: str) -> None:
        """Refuses to train beside other frozen weights, or from another start, than the server's."""
        if digest_first_model(task) != digest:
            advice = "the file that model.init names on the server must be here, named by node.init in node.toml"
            raise ReplyError(f"has other first weights than the server, which the plan needs it to have: {advice}")

    def check_consent(self, tables: planning.Tables) -> None:
        """The server names a model and a method; the node decides which of its own code may run."""
        named = [table.get("name") for section in ("model", "method") if isinstance(table := tables.get(section), dict)]
        for name in map(str, [*named, *tables.get("methods", ())]):
            if ":" in name and name.removesuffix(PTR) not in self.plan.node.allowed_names():
                raise ReplyError(f"is asked to run {name}, which node.models in its node.toml does not name")

    def answer_visit(self, parcel: Parcel) -> Parcel:
        words = parcel.words
        purpose: Any = words.get("purpose")
        if purpose not in get_args(Purpose):
            raise ReplyError("was asked for something it does not know; install the same fedptr")
        if words["client"] != self.plan.node.number or words["size"] != self.size:
            raise ReplyError(f"is number {self.plan.node.number} with {self.size} samples, and was taken for another")
        plan, task, data, test = self.prepare_experiment(words)
        if purpose == "evaluate":
            self.check_evaluation(plan)
        t, i, version = int(words["round"]), int(words["client"]), (int(words["round"]) + 1, int(words["attempt"]))
        seed, n, part, share = plan.run.seed, int(words["clients"]), float(words["part"]), float(words["share"])
        numbers = int(words["numbers"])
        here = Site(task, plan.local, Key(seed), t, n, part=part, numbers=numbers)
        server = site_of_round(here, plan.local, plan.run, t)
        versions = StateVersions(self.plan.folder / STATE, str(words["experiment"]), i)
        bench = UnfinishedWork(versions.folder / f"client-{i}", {"data": self.make_fingerprint("")})
        site = replace(site_of_client(server, seed, i, data, self.size, share, test), bench=bench)
        base = words["base"] if purpose != "evaluate" or plan.personalised else None
        before = None if base is None else versions.load((int(base[0]), int(base[1])), task.device)
        msg = blocks_to_state(parcel.blocks, task.device)
        if words.get("first_model") and (task.held or "x" not in msg):
            self.check_first_model(task, str(words["first_model"]))
        result = visit_client(plan.method, purpose, msg, before, site, i)
        if purpose != "evaluate":
            versions.save(version, result.client, int(words["floor"]))
            bench.clear()
        answer = {"kind": "visited", "round": t, "attempt": version[1], "size": self.size, "seconds": result.seconds}
        # Under secure aggregation the server learns only the number of steps of a single client.
        log = {n: v for n, v in result.log.items() if n == "steps"} if plan.privacy.secure else result.log
        return Parcel({**answer, "log": select_small_entries(log)}, state_to_blocks(result.reply))

    def check_evaluation(self, plan: Plan) -> None:
        """Scores tell something of a single client; under secure aggregation only a plan that says so gets them."""
        if not self.tests:
            raise ReplyError("has no test data")
        if plan.privacy.hides_scores:
            raise ReplyError("keeps its scores to itself under privacy.secure; the plan must set privacy.scores = true")
