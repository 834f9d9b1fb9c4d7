"""`lstm_kernels.torch` against torch.nn, which it stands for; `make test-torch`."""

import _thread
import contextlib
import copy
import gc
import io
import os
import pickle
import signal
import threading
import weakref

import numpy as np
import pytest
from test_documents import readmes_examples

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, rnn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import lstm_kernels.torch as fused  # noqa: E402
from lstm_kernels import notes  # noqa: E402
from lstm_kernels.cpu import workspace  # noqa: E402
from lstm_kernels.cpu.intrinsics import words_at  # noqa: E402
from lstm_kernels.cpu.thread_pool import thread_pool  # noqa: E402
from lstm_kernels.kernels import native  # noqa: E402
from lstm_kernels.torch import openmp, weights  # noqa: E402
from lstm_kernels.versions.numba_fused import (  # noqa: E402
    MOST_WORKSPACES,
    Lease,
    NumbaFused,
)
from lstm_report.measure import peers  # noqa: E402
from lstm_report.measure.workloads import AIRLINE  # noqa: E402

KINDS = "LSTM", "GRU", "RNN"
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def pair(kind, *sizes, **options):
    """torch.nn's layer, and ours with the same weights."""
    torch.manual_seed(1)
    theirs = getattr(nn, kind)(*sizes, **options)
    ours = getattr(fused, kind)(*sizes, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def results(module, x, hx=None):
    """Outputs and gradients of a loss of all outputs, by name."""
    x = x.clone().requires_grad_()
    hx = hx and tuple(part.clone().requires_grad_() for part in hx)
    y, final = module(x, hx if hx is None or module.mode == "LSTM" else hx[0])
    outputs = y, *parts(final)
    torch.manual_seed(2)
    sum((a * torch.randn_like(a)).sum() for a in outputs).backward()
    named = {name: p.grad for name, p in module.named_parameters()}
    named |= {f"output {k}": a for k, a in enumerate(outputs)}
    named |= {f"d state {k}": a.grad for k, a in enumerate(hx or ())}
    return named | {"dx": x.grad}


def same(got, want):
    assert got.keys() == want.keys()
    for name, a in want.items():
        if a is None:
            assert got[name] is None, name
            continue
        assert got[name].shape == a.shape, name
        error = (got[name] - a).abs().max() / a.abs().max().clamp(min=0.1)
        assert error <= TOLERANCE[a.dtype], (name, float(error))


def alike(theirs, ours, x, hx=None):
    for module in (theirs, ours):
        module.zero_grad()
    same(results(ours, x, hx), results(theirs, x, hx))


@pytest.fixture
def said(monkeypatch):
    """What was said, anew for each test."""
    lines = []
    monkeypatch.setattr(fused, "note", lambda what, message: lines.append(message))
    return lines


@pytest.fixture(autouse=True)
def nothing_falls_back(said, request):
    yield
    if "fall" not in request.node.name:
        assert said == []


# Sizes below, at and above vectors, wide unit blocks and what is multiplied at once.
SIZES = [(1, 1, 1, 1), (5, 3, 2, 7), (3, 2, 33, 16), (12, 16, 1, 32), (2, 70, 5, 33)]
OPTIONS = [
    {},
    {"num_layers": 3},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"bidirectional": True, "batch_first": True, "bias": False},
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_pytorchs(kind, options, dtype):
    for T, B, D, H in SIZES:
        theirs, ours = pair(kind, D, H, dtype=dtype, **options)
        x = torch.randn(*((B, T) if theirs.batch_first else (T, B)), D, dtype=dtype)
        count = theirs.num_layers * (1 + theirs.bidirectional)
        names = "hc" if kind == "LSTM" else "h"
        hx = tuple(torch.randn(count, B, H, dtype=dtype) for _ in names)
        for state in (None, hx, None):  # after a state, none is zeros again
            alike(theirs, ours, x, state)
        with torch.no_grad():
            for state in (None, hx):
                given = state if state is None or kind == "LSTM" else state[0]
                (y, final), (want, last) = ours(x, given), theirs(x, given)
                got = dict(enumerate((y, *parts(final))))
                same(got, dict(enumerate((want, *parts(last)))))
                assert not y.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    module = getattr(fused, kind)(2, 3, 2, dtype=torch.float64)
    x, h, c = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((4, 2, 2), (2, 2, 3), (2, 2, 3))
    )
    state = (h, c) if kind == "LSTM" else (h,)
    weights = [*module.parameters()]

    def run(x, *rest):
        state = rest[:2] if kind == "LSTM" else rest[0]
        y, final = module(x, state)
        return (y, *parts(final))

    assert torch.autograd.gradcheck(run, (x, *state, *weights))


def test_each_output_alone_has_its_gradient():
    theirs, ours = pair("LSTM", 2, 5, 2)
    x = torch.randn(4, 3, 2)
    for pick in (lambda y, s: y[-1], lambda y, s: s[0], lambda y, s: s[1][0]):
        found = []
        for module in (theirs, ours):
            module.zero_grad()
            pick(*module(x)).sum().backward()
            found.append({n: p.grad for n, p in module.named_parameters()})
        same(*found[::-1])


def test_passes_live_at_once_and_go_back_in_any_order():
    theirs, ours = pair("LSTM", 2, 5)
    xs = [torch.randn(4, 3, 2) for _ in range(7)]
    found = []
    for module in (theirs, ours):
        module.zero_grad()
        ends = [module(x)[0].square().sum() * k for k, x in enumerate(xs)]
        for end in (ends[3], ends[6], sum(ends[:3])):
            end.backward()
        found.append({n: p.grad for n, p in module.named_parameters()})
    same(*found[::-1])


def test_a_graph_that_is_retained_goes_back_again():
    theirs, ours = pair("GRU", 2, 5)
    x, found = torch.randn(4, 3, 2), []
    for module in (theirs, ours):
        end = module(x)[0].square().sum()
        end.backward(retain_graph=True)
        module(2 * x)[0].sum().backward()  # takes the arrays of the first pass
        end.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            end.backward()
        found.append({n: p.grad for n, p in module.named_parameters()})
    same(*found[::-1])


def test_arrays_of_a_pass_go_back_with_its_graph():
    _, ours = pair("LSTM", 2, 5)
    x = torch.randn(4, 3, 2)
    for k in range(3):
        y = ours(x)[0]
        if k == 1:
            y.sum().backward()
        del y
    (_, engines) = ours._engines
    (engine,) = engines.values()
    assert len(engine._free) == 1
    gone = weakref.ref(engine)
    del engine, engines, ours
    assert gone() is None


def changes():
    """Ways to change a weight, by name."""

    def in_place(module):
        with torch.no_grad():
            module.weight_hh_l0.mul_(0.5)

    def by_data(module):
        module.weight_hh_l0.data.mul_(0.5)

    def of_bias(module):
        module.bias_hh_l0.data.add_(0.25)

    def by_numpy(module):
        module.weight_ih_l0.detach().numpy()[:] *= 2

    def other_data(module):
        module.weight_hh_l0.data = module.weight_hh_l0.data.clone() * 0.5

    def turned(module):
        module.weight_hh_l0.data = module.weight_hh_l0.data.clone()[:, [1, 0, 2]].t()
        module.weight_hh_l0.data = module.weight_hh_l0.data.t()

    def other_parameter(module):
        module.bias_ih_l0 = nn.Parameter(torch.ones_like(module.bias_ih_l0))

    def loaded(module):
        state = {n: a * 0.5 for n, a in module.state_dict().items()}
        module.load_state_dict(state)

    def as_double(module):
        module.double().float()

    def to_zero(module):
        module.weight_hh_l0.data.zero_()

    def not_a_number(module):
        module.weight_ih_l0.data[1, 1] = torch.nan

    return {name: f for name, f in locals().items() if callable(f)}


@pytest.mark.parametrize("change", changes().values(), ids=changes())
@pytest.mark.parametrize("training", [False, True], ids=["no_grad", "training"])
def test_every_change_of_a_weight_is_seen(change, training):
    theirs, ours = pair("LSTM", 2, 3)
    x, found = torch.randn(4, 3, 2), []
    for module in (theirs, ours):
        with torch.set_grad_enabled(training):
            module(x)
            change(module)
            found.append(module(x)[0].detach())
    torch.testing.assert_close(*found, atol=2e-6, rtol=2e-5, equal_nan=True)


def test_a_weight_changed_before_backward_is_pytorchs_error():
    for module in pair("LSTM", 2, 3):
        end = module(torch.randn(4, 3, 2))[0].sum()
        with torch.no_grad():
            module.weight_hh_l0.mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            end.backward()


def test_other_weights_between_a_pass_and_its_backward():
    theirs, ours = pair("LSTM", 2, 3)
    x, found = torch.randn(4, 3, 2), []
    for module in (theirs, ours):
        own = dict(module.named_parameters())
        other = {n: (2 * p).detach().requires_grad_() for n, p in own.items()}
        first = torch.func.functional_call(module, own, (x,))[0].sum()
        second = torch.func.functional_call(module, other, (x,))[0].sum()
        first.backward()
        second.backward()
        found.append({n: p.grad for n, p in own.items()})
        found[-1] |= {f"other {n}": p.grad for n, p in other.items()}
    same(*found[::-1])


def test_a_parametrization_and_frozen_weights():
    theirs, ours = pair("LSTM", 2, 3)
    for module in (theirs, ours):
        parametrizations.weight_norm(module, "weight_hh_l0")
        module.bias_ih_l0.requires_grad_(False)
    alike(theirs, ours, torch.randn(4, 3, 2))


def test_a_state_alone_has_a_gradient():
    """Of a module whose weights are frozen, on an input without one."""
    found = []
    for module in pair("LSTM", 2, 3):
        module.requires_grad_(False)
        hx = [torch.full((1, 3, 3), 0.5, requires_grad=True) for _ in "hc"]
        module(torch.ones(4, 3, 2), tuple(hx))[0].sum().backward()
        found.append({f"{k}": a.grad for k, a in enumerate(hx)})
    same(*found[::-1])


def test_weights_of_inference_mode_are_read_and_compared():
    with torch.inference_mode():
        theirs, ours = pair("LSTM", 2, 3)
        x = torch.randn(4, 3, 2)
        for _ in range(2):
            torch.testing.assert_close(ours(x)[0], theirs(x)[0])
            for module in (theirs, ours):
                module.weight_hh_l0.mul_(2)


def test_storages_can_be_resized_after_a_pass():
    """As FSDP does."""
    _, ours = pair("LSTM", 2, 3)
    x, hx = torch.randn(4, 3, 2), (torch.zeros(1, 3, 3), torch.zeros(1, 3, 3))
    ours(x, hx)[0].sum().backward()
    for tensor in (x, *hx, *(p.data for p in ours.parameters())):
        tensor.resize_(99)


def test_a_checkpoint_keeps_no_arrays_of_a_pass():
    theirs, ours = pair("LSTM", 2, 3)
    x, grads = torch.randn(4, 3, 2, requires_grad=True), []
    for module in (theirs, ours):
        how = {"use_reentrant": False}
        ys = [checkpoint(lambda x: module(x)[0], x, **how) for _ in range(9)]  # noqa: B023
        live = [o for o in gc.get_objects() if type(o) is Lease and o.workspace]
        assert not live
        grads.append(torch.autograd.grad(sum(ys).sum(), [x, *module.parameters()]))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


def test_few_arrays_of_passes_are_kept():
    _, ours = pair("LSTM", 2, 3)
    ours(torch.ones(4, 3, 2))[0].sum().backward()
    (engine,) = ours._engines[1].values()
    assert len(engine._free) == 1
    graphs = [ours(torch.ones(4, 3, 2))[0].sum() for _ in range(20)]
    for graph in graphs[:10]:
        graph.backward()
    del graph, graphs
    assert 1 <= len(engine._free) <= MOST_WORKSPACES + 1  # beside that used last


def test_a_pass_that_was_interrupted_while_it_packed_packs_anew(monkeypatch):
    theirs, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2)
    before = ours(x)[0]
    for module in (theirs, ours):
        module.weight_ih_l0.data.mul_(2)  # PyTorch counts no change

    def interrupted(matrix, new, compare):
        matrix._last[matrix._gates] = new
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(weights.Matrix, "pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours(x)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    assert not torch.equal(ours(x)[0], before)


def test_passes_run_on_pytorchs_number_of_threads():
    _, ours = pair("LSTM", 2, 40)
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            ours(torch.ones(4, 3, 2))
            (engine,) = ours._engines[1].values()
            most = min(count, engine.most_threads())
            assert f"{most} thread" in repr(engine)
    finally:
        torch.set_num_threads(before)


def test_inputs_of_any_strides_and_an_input_that_changes():
    theirs, ours = pair("LSTM", 2, 3)
    x = torch.randn(3, 4, 5).transpose(0, 1)[..., ::2][..., :2]
    alike(theirs, ours, x)
    for module in (theirs, ours):
        kept = torch.randn(4, 3, 2)
        end = module(kept)[0].sum()
        kept.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            end.backward()


def test_inference_mode_and_a_frozen_module_make_no_graph():
    theirs, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    assert not ours.requires_grad_(False)(x)[0].requires_grad


def test_numbers_that_are_not_finite_come_through():
    for value in (np.nan, np.inf):
        theirs, ours = pair("LSTM", 2, 3)
        x = torch.randn(4, 3, 2)
        x[1, 0, 0] = value
        for got, want in zip(ours(x)[0], theirs(x)[0], strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


def test_dropout_is_between_layers_while_training():
    theirs, ours = pair("LSTM", 2, 40, 3, dropout=0.5)
    x = torch.randn(6, 5, 2)
    alike(theirs.eval(), ours.eval(), x)
    ours.train()
    torch.manual_seed(3)
    y, (h, _) = ours(x)
    torch.manual_seed(3)
    again, _ = ours(x)
    assert torch.equal(y, again)
    assert not torch.equal(y, ours(x)[0])
    # Layer by layer, the outputs of each but the last dropped by PyTorch's own
    layers = [nn.LSTM(2 if layer == 0 else 40, 40) for layer in range(3)]
    names = "weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"
    for k, layer in enumerate(layers):
        layer.load_state_dict({f"{n}0": getattr(ours, f"{n}{k}") for n in names})
    torch.manual_seed(3)
    below = x
    for k, layer in enumerate(layers):
        below, (final, _) = layer(below)
        torch.testing.assert_close(h[k], final[0], atol=1e-5, rtol=1e-4)
        if k < 2:
            below = nn.functional.dropout(below, 0.5)
    torch.testing.assert_close(y, below, atol=1e-5, rtol=1e-4)


def test_dropout_is_between_two_directions_layers_too():
    theirs, ours = pair("GRU", 2, 8, num_layers=2, bidirectional=True, dropout=0.5)
    x = torch.randn(4, 3, 2)
    ours.train()
    torch.manual_seed(3)
    first, second = ours(x)[0], ours(x)[0]
    assert not torch.equal(first, second)
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0])


def test_batched_gradients_are_refused():
    _, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2, requires_grad=True)
    y, _ = ours(x)
    with pytest.raises(RuntimeError, match=r"got batched gradients, .*restore"):
        torch.autograd.grad(y, x, torch.ones(2, *y.shape), is_grads_batched=True)


def test_second_derivatives_are_refused():
    _, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2, requires_grad=True)
    message = "got create_graph=True, want a layer of torch.nn"
    with pytest.raises(RuntimeError, match=message):
        torch.autograd.grad(ours(x)[0].sum(), x, create_graph=True)


def test_copies_and_files_have_the_parameters_alone():
    theirs, ours = pair("LSTM", 2, 3, 2)
    x = torch.randn(4, 3, 2)
    ours(x)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), loaded):
        assert "_engines" not in vars(other)
        alike(theirs, other, x)
        with torch.no_grad():
            other.weight_hh_l0.zero_()
        torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    with open(os.devnull, "wb") as file:
        torch.save(ours.state_dict(), file)
    assert [*ours.state_dict()] == [*theirs.state_dict()]


def test_replace_changes_layers_in_place():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.ModuleList([nn.LSTM(2, 3), nn.GRU(3, 3, batch_first=True)])
            self.head, self.own = nn.Linear(3, 1), Subclass(2, 3)

    class Subclass(nn.LSTM):
        pass

    model = Model()
    parameters, seen = [*model.parameters()], []
    model.body[0].register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(4, 3, 2)
    before = model.body[0](x)[0]
    assert fused.replace(model) is model
    assert [type(m) for m in model.body] == [fused.LSTM, fused.GRU]
    assert type(model.own) is Subclass
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    torch.testing.assert_close(model.body[0](x)[0], before)
    assert seen == [1, 1]
    assert fused.replace(nn.RNN(2, 3)).__class__ is fused.RNN
    with pytest.raises(TypeError, match=r"model: got str, want a torch\.nn\.Module"):
        fused.replace("model")


def test_restore_gives_pytorchs_layers_back(capsys, monkeypatch):
    model = nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 1))
    weights_before = [*model.parameters()]
    fused.replace(model)[0](torch.ones(4, 3, 2))
    assert fused.restore(model) is model
    assert type(model[0]) is nn.LSTM
    assert all(a is b for a, b in zip(weights_before, model.parameters(), strict=True))
    pickle.loads(pickle.dumps(model))[0](torch.ones(4, 3, 2))
    with pytest.raises(TypeError, match=r"model: got int, want a torch\.nn\.Module"):
        fused.restore(3)
    monkeypatch.delenv("LSTM_KERNELS_QUIET", raising=False)
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.setattr(fused, "note", notes.note)
    fused.replace(nn.Linear(1, 1))
    assert "replace: no torch.nn.LSTM, GRU or RNN in Linear." in capsys.readouterr().err


def test_a_training_run_is_pytorchs():
    losses = []
    for replaced in (False, True):
        torch.manual_seed(4)
        model = nn.Sequential(nn.LSTM(1, 8, 2, batch_first=True))
        head = nn.Linear(8, 1)
        model = fused.replace(model) if replaced else model
        descent = torch.optim.Adam([*model.parameters(), *head.parameters()], 0.01)
        x = torch.sin(torch.arange(64.0) / 3).unfold(0, 13, 1)
        losses.append([])
        for _ in range(20):
            descent.zero_grad()
            y, _ = model(x[:, :12, None])
            loss = nn.functional.mse_loss(head(y[:, -1]), x[:, 12:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            descent.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.5 * losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_any_number_of_threads_gives_the_same_bits():
    _, ours = pair("LSTM", 5, 70, 2)
    x, before, found = torch.randn(9, 6, 5), torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ours.zero_grad()
            found.append(results(ours, x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def sets_its_word(p, first, last, arguments):
    """Code of a region: worker p sets its word, and returns a number of its own."""
    words_at(arguments, 8)[p] = first + 10 * last + 100 * p
    return 7 + p


needs_openmp = pytest.mark.skipif(not openmp.FOUND, reason="a PyTorch without OpenMP")


@needs_openmp
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_region_of_openmp_has_its_workers(workers):
    words = np.zeros(8, np.int64)
    code = native(sets_its_word, "")
    got = openmp.pool().run(workers, code, words.ctypes.data, words, 3, 4)
    assert got == 7  # the caller's
    want = [43 + 100 * p for p in range(workers)] + [0] * (8 - workers)
    assert words.tolist() == want


@needs_openmp
def test_passes_run_on_pytorchs_threads_and_leave_their_mode(monkeypatch):
    tiny = torch.full((1 << 20,), 1e-40)  # subnormal, and enough for several threads
    _, ours = pair("LSTM", 2, 40)
    regions, run = [], openmp.OpenMP.run

    def recorded(self, workers, *rest):
        regions.append(workers)
        return run(self, workers, *rest)

    monkeypatch.setattr(openmp.OpenMP, "run", recorded)
    before, own = torch.get_num_threads(), thread_pool()._count
    try:
        torch.set_num_threads(2)
        for B in (4, 8, 16, 32):
            for _ in range(8):  # while it is autotuned
                ours(torch.ones(9, B, 2))[0].sum().backward()
                assert ((tiny * 1.0) != 0).all()
    finally:
        torch.set_num_threads(before)
    assert max(regions) == min(2, fused.Engine.most_threads())
    assert thread_pool()._count == own


@needs_openmp
def test_a_long_pass_runs_on_pytorchs_threads_and_is_interrupted(monkeypatch):
    monkeypatch.setattr(workspace, "LONG", 0)  # each pass is one
    theirs, ours = pair("LSTM", 2, 40)
    x, own, before = torch.randn(9, 8, 2), thread_pool()._count, torch.get_num_threads()

    def go_on():
        while True:
            ours(x)[0].sum().backward()

    torch.set_num_threads(2)
    try:
        threading.Timer(0.5, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            go_on()
        ours.zero_grad()
        same(results(ours, x), results(theirs, x))
    finally:
        torch.set_num_threads(before)
    assert thread_pool()._count == own


def test_partitions_are_autotuned_apart_from_those_of_numba_fused():
    """Their threads are others, so what is fastest may be too."""
    engine = fused.Engine("lstm", 2, 8, 1, np.dtype(np.float32), 1)
    net = NumbaFused(engine.weights.params(), 1)
    sizes = 3, 4, "inference", "forward"
    assert engine._autotuner(*sizes) is engine._autotuner(*sizes)
    assert engine._autotuner(*sizes) is not net._autotuner(*sizes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    """OpenMP's are the parent's: a region would wait for them for ever."""
    theirs, ours = pair("LSTM", 2, 40)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(20):
            ours(torch.ones(9, 8, 2))
        want = theirs(torch.ones(9, 8, 2))[0]
        child = os.fork()
        if not child:
            code = 1
            signal.alarm(60)  # ends a child that waits
            with contextlib.suppress(BaseException):
                assert openmp.pool() is thread_pool()
                for _ in range(20):
                    got = ours(torch.ones(9, 8, 2))[0].detach().numpy()
                np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-5)
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (openmp.pool() is not thread_pool()) == openmp.FOUND
    finally:
        torch.set_num_threads(before)


def test_python_threads_share_a_module():
    theirs, ours = pair("LSTM", 2, 9)
    xs = [torch.randn(6, 3, 2) for _ in range(4)]
    want = [torch.autograd.grad(theirs(x)[0].sum(), theirs.weight_hh_l0)[0] for x in xs]
    got = [None] * len(xs)

    def work(k):
        for _ in range(20):
            y, _ = ours(xs[k])
            (got[k],) = torch.autograd.grad(y.sum(), ours.weight_hh_l0)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(len(xs))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_graph_goes_back_in_another_thread():
    theirs, ours = pair("LSTM", 2, 9)
    x = torch.randn(6, 3, 2)
    theirs(x)[0].sum().backward()
    end = ours(x)[0].sum()
    worker = threading.Thread(target=end.backward)
    worker.start()
    worker.join()
    same(
        {n: p.grad for n, p in ours.named_parameters()},
        {n: p.grad for n, p in theirs.named_parameters()},
    )


class Computed(torch.utils.data.Dataset):
    """Examples that a module computes."""

    def __init__(self, module):
        self.module = module

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            return self.module(torch.full((3, 1, 2), float(index)))[0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_module_works_in_a_data_loaders_workers(way):
    theirs, ours = pair("LSTM", 2, 3)
    ours(torch.ones(3, 1, 2))
    loader = torch.utils.data.DataLoader(
        Computed(ours), num_workers=2, multiprocessing_context=way
    )
    for index, y in enumerate(loader):
        torch.testing.assert_close(y[0], Computed(theirs)[index])
    ours(torch.ones(3, 1, 2))


# What falls back.


def falls(said, why, theirs, ours, *inputs):
    """The results of both modules, which are the same; a line says why."""
    found = [module(*inputs) for module in (ours, theirs)]
    assert said == [f"torch.nn.{type(ours).__name__} runs calls with {why}"]
    return found


def test_a_packed_sequence_falls_back(said):
    theirs, ours = pair("LSTM", 2, 3)
    x = rnn.pack_sequence([torch.randn(4, 2), torch.randn(2, 2)])
    got, want = falls(said, "a packed sequence", theirs, ours, x)
    torch.testing.assert_close(got[0].data, want[0].data)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_relu_a_projection_and_other_dtypes_fall_back(said):
    x = torch.randn(4, 3, 2)
    cases = {
        "relu": (pair("RNN", 2, 3, nonlinearity="relu"), x),
        "a projection": (pair("LSTM", 2, 3, proj_size=2), x),
        "torch.bfloat16 on cpu": (
            pair("GRU", 2, 3, dtype=torch.bfloat16),
            x.bfloat16(),
        ),
        "a sequence without a batch axis": (pair("LSTM", 2, 3), x[0]),
        "torch.float32 on meta": (pair("LSTM", 2, 3, device="meta"), x.to("meta")),
    }
    for why, (modules, given) in cases.items():
        said.clear()
        got, want = falls(said, why, *modules, given)
        assert got[0].shape == want[0].shape
        if not got[0].is_meta:
            torch.testing.assert_close(got[0], want[0])


def test_autocast_falls_back(said):
    _, ours = pair("LSTM", 2, 3)
    # Not every processor has what PyTorch's own needs
    with torch.autocast("cpu", torch.bfloat16), contextlib.suppress(RuntimeError):
        ours(torch.randn(4, 3, 2))
    assert said == ["torch.nn.LSTM runs calls with autocast"]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_is_traced_falls_back(said):
    theirs, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2)
    traced = torch.jit.trace(ours, (x,), check_trace=False)
    torch.testing.assert_close(traced(x)[0], theirs(x)[0])
    assert set(said) == {"torch.nn.LSTM runs calls with torch.jit.trace or torch.func"}
    said.clear()
    weights = dict(ours.named_parameters())

    def loss(weights, module):
        return torch.func.functional_call(module, weights, (x,))[0].sum()

    got, want = (torch.func.grad(loss)(weights, module) for module in (ours, theirs))
    same(got, want)
    assert set(said) == {"torch.nn.LSTM runs calls with torch.jit.trace or torch.func"}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_forward_mode_gradient_falls_back(said):
    _, ours = pair("GRU", 2, 3)
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(4, 3, 2), torch.ones(4, 3, 2))
        with contextlib.suppress(NotImplementedError):  # torch.nn's own may have none
            assert forward_ad.unpack_dual(ours(x)[0]).tangent is not None
    assert said == ["torch.nn.GRU runs calls with a forward-mode gradient"]


def test_what_a_mode_of_dispatch_sees_falls_back():
    from torch.fx.experimental.proxy_tensor import make_fx

    theirs, ours = pair("LSTM", 2, 3)
    x, other = torch.randn(2, 4, 3, 2)
    graph = make_fx(lambda x: ours(x)[0])(x)
    torch.testing.assert_close(graph(other), theirs(other)[0])


def test_a_subclass_of_tensors_falls_back(said):
    class Own(torch.Tensor):
        pass

    theirs, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2).as_subclass(Own)
    got, want = falls(said, "a Own", theirs, ours, x)
    assert type(got[0]) is type(want[0]) is Own


def test_torch_compile_falls_back(said):
    theirs, ours = pair("LSTM", 2, 3)
    x = torch.randn(4, 3, 2)
    compiled = torch.compile(ours, backend="eager")
    torch.testing.assert_close(compiled(x)[0], theirs(x)[0])


@pytest.mark.parametrize(
    ("x", "hx"),
    [
        (torch.ones(4, 3, 5), None),
        (torch.ones(4, 3, 2, dtype=torch.float64), None),
        (torch.ones(4, 3, 2, 1), None),
        (torch.ones(0, 3, 2), None),
        (torch.ones(4, 3, 2), (torch.ones(1, 2, 3),) * 2),
        (torch.ones(4, 3, 2), (torch.ones(1, 3, 3),)),
        (torch.ones(4, 3, 2), 7),
        (torch.ones(4, 3, 2), (torch.ones(2, 3, 3), torch.ones(1, 3, 3))),
    ],
    ids=[
        "inputs",
        "dtype",
        "axes",
        "no steps",
        "samples",
        "one part",
        "no state",
        "layers",
    ],
)
def test_wrong_input_is_pytorchs_error(x, hx):
    theirs, ours = pair("LSTM", 2, 3)
    with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)) as want:
        theirs(x, hx)
    with pytest.raises(want.type) as got:
        ours(x, hx)
    assert str(got.value) == str(want.value)


def test_a_weight_of_another_shape_falls_nowhere(said):
    _, ours = pair("LSTM", 2, 3)
    ours(torch.ones(4, 3, 2))
    ours.weight_hh_l0.data = torch.ones(12, 2)
    with pytest.raises(ValueError, match=r"weights: got shapes \[.*\], want \["):
        ours(torch.ones(4, 3, 2))


def test_the_line_is_said_once(capsys, monkeypatch):
    monkeypatch.delenv("LSTM_KERNELS_QUIET", raising=False)
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.setattr(fused, "note", notes.note)
    _, ours = pair("RNN", 2, 3, nonlinearity="relu")
    for _ in range(3):
        ours(torch.ones(4, 3, 2))
    line = "lstm_kernels: torch.nn.RNN runs calls with relu.\n"
    assert capsys.readouterr().err == line


def test_models_are_measured_with_each_layer():
    found = peers.models("smoke")
    assert {*found["version"]} == {"numba-fused", *peers.OF_TORCH}
    assert {*found["stage"]} == {"forward", "step"}
    assert found["max_err"].max() < 1e-4
    fused_one = peers.FusedTorch(AIRLINE.params(), 1)
    assert type(fused_one.net) is fused.LSTM


def test_the_readmes_model_computes_here():
    names = {}
    exec(readmes_examples()[1], names)
    assert len(readmes_examples()[1].splitlines()) <= 5
    (lstm,) = names["model"]
    assert type(lstm) is fused.LSTM
    assert names["model"](torch.zeros(16, 12, 1))[0].shape == (16, 12, 32)
