"""The text of a kernel in PTX as rows of integers for the interpreter."""

import re
from itertools import count
from typing import NamedTuple

import numpy as np

from . import opcodes

FIELDS = ["op", "guard", "sense", "d", "a", "b", "c"]
FIELDS += ["list", "n", "space", "how", "offset", "fma"]
# Registers that hold a thread's place before its first instruction, in the order of
# `special` in interpreter.c, then those that all threads share.
PLACES = [f"%{what}.{axis}" for what in ("tid", "ctaid") for axis in "xyz"]
PLACES.append("%laneid")
SIZES = [f"%{what}.{axis}" for what in ("ntid", "nctaid") for axis in "xyz"]
SIZES.append("%dynamic_smem_size")
UNKNOWN = "%clock", "%globaltimer", "%warpid", "%nwarpid", "%smid", "%lanemask"
SPACES = {"global": 0, "const": 0, "shared": 1, "generic": 2, "local": 3}
HOW = {"relaxed": 1, "volatile": 1, "acquire": 3, "release": 5, "acq_rel": 7}
# What the lanes of a warp do together, as numbered in interpreter.c.
SHUFFLES = {"idx": 1, "up": 2, "down": 3, "bfly": 4}
REDUCED = {"popc": 1, "and": 2, "or": 3}  # over a block
VOTES = {"ballot": 5, "any": 6, "all": 7}
VERBS = {"ld": "reads", "st": "writes", "atom": "updates", "copy": "copies"}
SILENT = "membar", "fence", "nanosleep", "prefetch"
FUNCTION = re.compile(r"\.func\s+(?:\([^)]*\)\s*)?([\w$]+)\s*\(([^)]*)\)\s*(?=\{)")
CALL = re.compile(r"call(?:\.uni)?\s*(?:\((\w+)\),)?\s*([\w$]+),\s*\(([^)]*)\)\s*;")
PARAM = re.compile(r"\.param\s[^,)]*?([\w$]+)(?:\[\d+\])?\s*(?=[,)]|$)")
LABEL = re.compile(r"\s*([\w$]+):\s*")
NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")
LOCATION = re.compile(r"^\s*(\.loc\s+\d+\s+\d+)[^\n]*", re.MULTILINE)
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
IN_BLOCK = re.compile(r"\.(shared|local)\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\]")
TABLE = re.compile(
    r"\.(?:global|const)\s+\.align\s+\d+\s+\.[bus](\d+)\s+([\w$]+)\[\d*\]\s*=\s*"
    r"\{([^}]*)\}"
)


class Source(NamedTuple):
    """The line of Python that a statement was compiled from; 0 where nobody says."""

    file: str = ""
    line: int = 0


class Program:
    """A kernel: `code`, a row of FIELDS for each of `statements`, whose lines are
    `sources`; `slots`, a thread's registers by name, of which `constants` have a value
    from the start; `tables`, the numbers of each constant array; `narrow`, whether
    it accesses less than four bytes at once.

    Raises NotImplementedError for what the machine does not know.
    """

    def __init__(self, text, name=""):
        files = {number: _spelled(path) for number, path in FILE.findall(text)}
        text = LOCATION.sub(r"\1;", text)
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        functions = {
            match[1]: (match[2], _braced(text[match.end() :]))
            for match in FUNCTION.finditer(text)
        }
        head, _, body = text.partition(".visible .entry")[2].partition("{")
        body = _inlined(body, functions, count())
        self.entry = head.split("(")[0].strip()
        self.name = name or self.entry
        self.params = PARAM.findall(head)
        self.cooperative = "cudaCGGetIntrinsicHandle" in body
        self.lists, self.slots, self.constants = [], {}, {}
        for register in (*PLACES, *SIZES, *self.params):
            self._slot(register)
        self.static, self.locals = self._place_arrays(text)
        self.tables = {}
        for bits, table, numbers in TABLE.findall(text):
            values = [int(number, 0) for number in numbers.split(",")]
            self.tables[table] = np.array(values).astype(f"u{int(bits) // 8}")
            self._slot(table)
        self._scoped, self._labels = set(), {}
        scoped = self._read(body, files)
        self.statements = [statement for _, statement in scoped]
        rows = [self._row(*each, n) for n, each in enumerate(scoped)]
        self.code = np.array([[row[f] for f in FIELDS] for row in rows], np.int32)
        accesses = [self.access(pc) for pc in range(len(rows))]
        self.narrow = any(0 < size < 4 for _, size in accesses)

    def _read(self, body, files):
        """(scope, statement) of what is executed; notes labels, registers, lines."""
        scoped, self.sources, source = [], [], Source()
        for scope, statement in _statements(body):
            while match := LABEL.match(statement):
                self._labels[scope, match[1]] = len(scoped)
                statement = statement[match.end() :]
            if statement.startswith(".loc "):
                _, file, line = statement.split()
                source = Source(files[file], int(line)) if int(line) else source
            elif statement.startswith((".reg", ".param")) and len(scope):
                self._declare(scope, statement)
            elif statement and not statement.startswith("."):
                scoped.append((scope, statement))
                self.sources.append(source)
        self.sources.append(source)
        return [*scoped, ((), "ret")]

    def _place_arrays(self, text):
        """Give shared and local arrays their addresses, dynamic ones behind the static;
        returns the bytes of both spaces.
        """
        end = {"shared": 0, "local": 0}
        for space, align, name, size in sorted(
            IN_BLOCK.findall(text), key=lambda array: not array[3]
        ):
            end[space] += -end[space] % int(align)
            self.constants[self._slot(name)] = end[space]
            end[space] += int(size or 0)
        return end["shared"], end["local"] + -end["local"] % 16

    def _declare(self, scope, statement):
        declared = r"([%\w$]+)(?:<(\d+)>|\[\d+\])?\s*(?=,|$)"
        for name, number in re.findall(declared, statement):
            names = [f"{name}{i}" for i in range(int(number))] if number else [name]
            self._scoped |= {(scope, each) for each in names}

    def _slot(self, name):
        return self.slots.setdefault(name, len(self.slots))

    def _innermost(self, scope, name, known):
        for depth in range(len(scope), -1, -1):
            if (scope[:depth], name) in known:
                return scope[:depth], name
        return None

    def _operand(self, scope, text):
        """The slot of a register, or of a constant."""
        if local := self._innermost(scope, text, self._scoped):
            return self._slot(f"{text} {local[0]}")
        if match := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", text):
            value = int(match[1], 16)
        elif NUMBER.fullmatch(text):
            value = int(text.rstrip("U"), 0) % 2**64
        elif text == "WARP_SZ":
            value = 32
        elif text in self.slots or (text[0] == "%" and not text.startswith(UNKNOWN)):
            return self._slot(text)
        else:
            raise NotImplementedError(f"{text}: want a register or a constant")
        slot = self._slot(f"={value}")
        self.constants[slot] = value
        return slot

    def _list(self, slots):
        self.lists += slots
        return len(self.lists) - len(slots)

    def _row(self, scope, statement, number):
        row = dict.fromkeys(FIELDS, 0) | {"guard": -1, "n": 1}
        if match := re.match(r"@(!?)([%\w$]+)\s+", statement):
            row["guard"] = self._operand(scope, match[2])
            row["sense"] = int(not match[1])
            statement = statement[match.end() :]
        name, _, rest = statement.partition(" ")
        row["fma"] = int(name.startswith("fma."))
        texts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s]+", rest)
        try:
            row |= self._encoded(scope, name, name.split("."), texts)
        except (LookupError, TypeError, ValueError) as error:
            place = "{}:{}".format(*self.sources[number])
            raise NotImplementedError(f"{place}: {statement}") from error
        return row

    def _encoded(self, scope, name, parts, texts):
        """Fields of an instruction, `parts` its name without dots, with operands."""

        def slot(text):
            return self._operand(scope, text)

        def several(text):
            return [slot(part.strip()) for part in text.strip("{}").split(",")]

        def address(text):
            base, _, offset = text.strip("[]").replace(" ", "").partition("+")
            return slot(base), int(offset or "0", 0)

        kind, first, op = parts[-1], parts[0], opcodes.number
        if name.startswith(SILENT):
            return {"op": op("nop")}
        if first == "bra":
            label = self._innermost(scope, texts[0], self._labels)
            return {"op": op("bra"), "d": self._labels[label]}
        if first in ("ret", "exit", "trap"):
            return {"op": op("trap" if first == "trap" else "ret")}
        if first == "call":
            waits = "cudaCGSynchronize" in texts
            if not waits and "cudaCGGetIntrinsicHandle" not in texts:
                raise ValueError(texts)
            return {"op": op("grid" if waits else "nop")}
        if "param" in parts:  # of a kernel, or of a function that is inlined
            text, place = texts if first == "ld" else texts[::-1]
            param, _, offset = place.strip("[]").partition("+")
            if param not in self.params:
                of_call, _ = self._innermost(scope, param, self._scoped)
                param += f"+{int(offset or 0)} {of_call}"
            to, source = (slot(text), self._slot(param))[:: 1 if first == "ld" else -1]
            return {"op": op(f"mov.b{kind[1:]}"), "d": to, "a": source}
        if first == "shfl":
            d, _, inside = texts[0].partition("|")
            lists = self._list([slot(texts[4]), slot(inside or "%unused")])
            fields = dict(zip("dabc", map(slot, [d, *texts[1:4]]), strict=True))
            return {"op": op("warp"), "n": SHUFFLES[parts[2]], "list": lists} | fields
        if first == "vote":
            fields = {"d": slot(texts[0]), "a": slot(texts[1].lstrip("!"))}
            fields |= {"n": VOTES[parts[2]], "offset": int(texts[1][0] == "!")}
            return {"op": op("warp"), "list": self._list([slot(texts[2])])} | fields
        if "warp" in parts:
            return {"op": op("warp"), "n": 0, "list": self._list([slot(texts[0])])}
        if first in ("bar", "barrier"):
            if "red" in parts:
                fields = {"d": slot(texts[0]), "a": slot(texts[2])}
                by = next(REDUCED[part] for part in parts if part in REDUCED)
                return {"op": op("bar"), "n": by} | fields
            if "sync" not in parts or len(texts) > 1:
                raise ValueError(texts)
            return {"op": op("bar"), "n": 0}
        if name.startswith("cp.async"):
            return self._copy(parts, texts, slot, address)
        if first in ("ld", "ldu", "st", "atom", "red"):
            return self._memory(first, parts, texts, slot, several, address)
        if first == "mov" and "{" in texts[0] + texts[1]:
            split = texts[0][0] == "{"
            low, high = several(texts[0 if split else 1])
            fields = {"d": low, "b": high, "a": slot(texts[1])} if split else {}
            fields = fields or {"d": slot(texts[0]), "a": low, "b": high}
            return {"op": op(f"{'un' * split}pack.{kind}")} | fields
        names = ["d", "a", "b", "c", "list"][: len(texts)]
        return {"op": op(name)} | dict(zip(names, map(slot, texts), strict=True))

    def _memory(self, first, parts, texts, slot, several, address):
        kind, atomic = parts[-1], first in ("atom", "red")
        how = max([int(atomic), *(HOW[part] for part in parts if part in HOW)])
        how = min(how, 1) if "cta" in parts else how  # of no use to other blocks
        space = next((part for part in parts if part in SPACES), "generic")
        if first == "red":
            texts = ["%unused", *texts]
        value, place = texts[:2] if first != "st" else texts[1::-1]
        base, offset = address(place)
        fields = {"a": base, "offset": offset, "space": SPACES[space], "how": how}
        if atomic:
            update = next(part for part in parts if part in opcodes.UPDATES)
            operands = dict(zip("bc", map(slot, texts[2:]), strict=False))
            op = opcodes.number(f"atom.{update}.{kind}")
            return {"op": op, "d": slot(value)} | fields | operands
        if first == "st" or kind[0] != "s":
            kind = f"b{kind[1:]}"
        values = several(value)
        fields |= {"list": self._list(values), "n": len(values)}
        return {"op": opcodes.number(f"{first[:2]}.{kind}")} | fields

    def _copy(self, parts, texts, slot, address):
        if parts[2] in ("commit_group", "wait_group", "wait_all"):
            op = opcodes.number("commit" if parts[2] == "commit_group" else "await")
            most = int(texts[0]) if texts else -(parts[2] == "wait_all")
            return {"op": op, "n": most}
        (to, offset), (source, shift) = map(address, texts[:2])
        fields = {"d": to, "offset": offset, "a": source, "list": shift}
        return {"op": opcodes.number("copy"), "n": int(texts[2]), "space": 2} | fields

    def access(self, pc):
        """What a statement does to memory, and to how many bytes: ("reads", 4)."""
        op, n = (self.code[pc, FIELDS.index(field)] for field in ("op", "n"))
        name, *parts = opcodes.NAMES[op].split(".")
        if name not in VERBS:
            return "is", 0
        return VERBS[name], int(n) * (int(parts[-1][1:]) // 8 if parts else 1)


def _spelled(path):
    """A path whose letters beyond ASCII stand as octal numbers."""
    found = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), path)
    return found.encode("latin-1", "replace").decode(errors="replace")


def _braced(text):
    """What stands between a text's first brace and the one that closes it."""
    depth = 0
    for brace in re.finditer(r"[{}]", text):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[1 : brace.start()]
    raise ValueError("a brace is open")


def _inlined(text, functions, calls):
    """The text with functions in the place of their calls, each in a scope."""

    def body(call):
        result, name, arguments = call.groups()
        if name not in functions:
            return call[0]
        params, body = functions[name]
        number = next(calls)
        names = dict(zip(PARAM.findall(params), arguments.split(","), strict=True))
        for param, argument in (names | {"func_retval0": result or ""}).items():
            body = re.sub(rf"\b{re.escape(param)}\b", argument.strip(), body)
        body = re.sub(r"(\$L__\w+)", rf"\1_{number}", body)
        body = re.sub(r"\b(?:ret|exit)(?:\.uni)?;", f"bra $end_{number};", body)
        return f"{{ {_inlined(body, functions, calls)} $end_{number}: membar; }}"

    return CALL.sub(body, text)


def _statements(body):
    """(scope, text) of each statement; a scope tells the braces that it stands in."""
    scope, opened, text = (), 0, ""
    for piece in re.split(r"([{};])", body):
        between = not LABEL.sub("", text).strip()
        if piece == ";":
            yield scope, " ".join(text.split())
            text = ""
        elif piece == "{" and between:
            yield scope, text.strip()
            opened += 1
            scope, text = (*scope, opened), ""
        elif piece == "}" and between:
            yield scope, text.strip()
            if not scope:
                return
            scope, text = scope[:-1], ""
        else:
            text += piece
