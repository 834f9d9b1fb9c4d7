"""PyTorch on a GPU, called as a network is: what the GPU versions are timed beside.

`torch.backends.cudnn.benchmark` stays off, as it is by default.
"""

from functools import partial

from lstm_kernels import cores
from lstm_kernels.gpu.device import SIMULATED
from lstm_kernels.params import Params

from ..measure import peers

ON = "cpu" if SIMULATED else "cuda"
WARM = 3  # calls before one is captured
# What a results file calls them, and how they are made.
KINDS = {
    "pytorch": {},
    "pytorch-graph": {"graph": True},
    "pytorch-tf32": {"tf32": True},
    "pytorch-graph-tf32": {"graph": True, "tf32": True},
}


class Torch(peers.Torch):
    """A network of PyTorch whose data set and parameters are on a device.

    tf32: whether cuDNN may round what it multiplies to TF32, which PyTorch lets it by
    default. graph: an inference and an epoch are CUDA graphs, captured at the first
    call of their sizes.
    """

    def __init__(self, params, *, tf32=False, graph=False, device=ON):
        super().__init__(params, cores.cores(), device=device)
        self._tf32, self._graph, self._graphs = tf32, graph, {}
        self._dataset = None

    def params(self):
        """A copy of the parameters, on the host."""
        named = self.net.state_dict()
        named |= {f"readout.{n}": t for n, t in self.readout.state_dict().items()}
        return Params.from_torch({name: t.cpu() for name, t in named.items()})

    def forward(self, x):
        """y of an array, an array, and None for the final state."""
        return self._inference(x)().cpu().numpy(), None

    def on_device(self, x):
        """Inference of an x that is there, whose y stays there: a function."""
        run = self._inference(x)

        def wait():
            run()
            if self.device == "cuda":
                self.torch.cuda.synchronize()

        return wait

    def _inference(self, x):
        key = "forward", x.shape
        return partial(self._run, key, self.outputs, self.tensor(x))

    def epoch(self, dataset, order, batch_size, rate):
        """A step for each mini-batch of `order` (N,); the losses, each before its step,
        which come back at the end.
        """
        if self._dataset is not dataset:
            self._dataset, self._graphs = dataset, {}
            self._examples = self.tensor(dataset.x), self.tensor(dataset.target)
        self.optimizer.param_groups[0]["lr"] = rate
        key, steps = (len(order), batch_size, rate), partial(self._steps, batch_size)
        order = self.torch.from_numpy(order).to(self.device)
        return self._run(key, steps, order).tolist()

    def _steps(self, batch_size, order):
        x, target = self._examples
        batches = order.split(batch_size)
        chosen = ((x.index_select(1, i), target.index_select(0, i)) for i in batches)
        return self.torch.stack([self.descend(*examples) for examples in chosen])

    def _run(self, key, call, value):
        """call(value), tensors; of a graph a replay of what that launched."""
        # By one interface: PyTorch refuses this one together with the newer one.
        self.torch.backends.cudnn.allow_tf32 = self._tf32
        if not self._graph:
            return call(value)
        if key not in self._graphs:
            self._graphs[key] = self._captured(call, value)
        graph, place, result = self._graphs[key]
        place.copy_(value)
        graph.replay()
        return result

    def _captured(self, call, value):
        """A CUDA graph of call(value), the place of `value`, and that of the result.

        The calls before it, in which libraries set themselves up, change no parameter.
        """
        cuda, before = self.torch.cuda, [p.detach().clone() for p in self.parts]
        graph, aside = cuda.CUDAGraph(), cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            for _ in range(WARM):
                call(value)
        cuda.current_stream().wait_stream(aside)
        with cuda.graph(graph):
            result = call(value)
        with self.torch.no_grad():
            for parameter, old in zip(self.parts, before, strict=True):
                parameter.copy_(old)
        return graph, value, result
