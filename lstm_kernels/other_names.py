"""Names that other packages have for what is called otherwise here: asking for one is
an AttributeError that says what to use.
"""

from typing import TYPE_CHECKING

# params are Params, net is a network, and net.params() its Params.
HERE = {
    "fit": "lstm_kernels.train(net, dataset, epochs, batch_size, learning_rate)",
    "train": "lstm_kernels.train(net, dataset, epochs, batch_size, learning_rate)",
    "eval": "net.forward(x), which is inference without training=True",
    "forward": "net.forward(x), net = lstm_kernels.network(name, params)",
    "predict": "net.predict(x), net = lstm_kernels.network(name, params)",
    "parameters": "arrays() of params or net.params(), by name",
    "layers": "net.params().layers",
    "U": "layers[0].U",
    "W": "layers[0].W",
    "b": "layers[0].b",
    "state_dict": "to_torch() of params or net.params()",
    "load_state_dict": "Params.from_torch(state_dict), and net.assign(params)",
    "get_weights": "layers, V and b_out of params or net.params()",
    "set_weights": "net.assign(params)",
    "save": "net.params().save(path)",
    "history": "loss, seconds and validation, lists",
    "plot": "a figure of your own, such as matplotlib's plot(history.loss)",
}


class OtherNames:
    """A class whose objects answer to the names of `HERE` that they have not."""

    if not TYPE_CHECKING:  # to a type checker every name would be an attribute

        def __getattr__(self, name):
            """Of a name that is no attribute: an AttributeError."""
            if hasattr(type(self), name):  # it is an error inside a property
                return object.__getattribute__(self, name)
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in HERE:
                said += f", want {HERE[name]}"
            raise AttributeError(said, name=name, obj=self)
