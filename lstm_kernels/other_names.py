"""Names that other packages have for what is called otherwise here: asking for one is
an AttributeError that says what to use.
"""

from typing import TYPE_CHECKING, ClassVar

_TRAIN = "lstm_kernels.train(net, dataset, epochs, batch_size, learning_rate)"
_PLOT = "a figure of your own, such as matplotlib's plot(history.loss)"
NETWORK = {
    "fit": _TRAIN,
    "train": _TRAIN,
    "eval": "forward(x), which is inference without training=True",
    "parameters": "params(), a copy, whose arrays() are by name",
    "layers": "params().layers",
    "state_dict": "params().to_torch()",
    "load_state_dict": "assign(Params.from_torch(state_dict))",
    "get_weights": "params().layers",
    "set_weights": "assign(params)",
    "save": "params().save(path)",
    "plot": _PLOT,
}
PARAMETERS = {
    "fit": f"a network, lstm_kernels.network(name, params), and {_TRAIN}",
    "forward": "a network: lstm_kernels.network(name, params).forward(x)",
    "predict": "a network: lstm_kernels.network(name, params).predict(x)",
    "parameters": "arrays(), by name",
    "state_dict": "to_torch()",
    "load_state_dict": "Params.from_torch(state_dict)",
    "get_weights": "layers, V and b_out, or arrays(), by name",
    "U": "layers[0].U",
    "W": "layers[0].W",
    "b": "layers[0].b",
    "plot": _PLOT,
}
HISTORY = {
    "history": "loss, seconds and validation, lists",
    "plot": _PLOT,
}


class OtherNames:
    """A class that answers to `_other_names`: what to use for each."""

    _other_names: ClassVar[dict[str, str]] = {}

    if not TYPE_CHECKING:  # to a type checker every name would be an attribute

        def __getattr__(self, name):
            """Of a name that is no attribute: an AttributeError."""
            if hasattr(type(self), name):  # it is an error inside a property
                return object.__getattribute__(self, name)
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in type(self)._other_names:
                said += f", want {type(self)._other_names[name]}"
            raise AttributeError(said, name=name, obj=self)
