"""The text of a kernel in PTX as rows of integers for the interpreter."""

import re

import numpy as np

from . import opcodes

FIELDS = ["op", "guard", "sense", "d", "a", "b", "c"]
FIELDS += ["list", "n", "space", "how", "offset", "fma"]
# Registers that hold a thread's place before its first instruction, in the order of
# `special` in interpreter.c, then those that all threads share.
PLACES = "%tid.x", "%tid.y", "%ctaid.x", "%laneid"
SHARED = "%ntid.x", "%ntid.y", "%nctaid.x", "%dynamic_smem_size"
GIVEN = dict.fromkeys(["%ntid.z", "%nctaid.y", "%nctaid.z"], 1)
GIVEN |= dict.fromkeys(["%tid.z", "%ctaid.y", "%ctaid.z"], 0)
UNKNOWN = "%clock", "%globaltimer", "%warpid", "%nwarpid", "%smid", "%lanemask"
SPACES = {"global": 0, "shared": 1, "generic": 2, "local": 3}
HOW = {"relaxed": 1, "volatile": 1, "acquire": 3, "release": 5, "acq_rel": 7}
SHUFFLES = {"idx": 1, "up": 2, "down": 3, "bfly": 4}
SILENT = "membar", "fence", "nanosleep", "prefetch", "st.param"
LABEL = re.compile(r"\s*([\w$]+):\s*")
NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")


class Program:
    """A kernel: `code`, a row of FIELDS for each of `statements`; `slots`, a thread's
    registers by name, of which `constants` have a value from the start.

    opcodes_met: dict opcode -> number, which grows. Raises NotImplementedError for what
    the machine does not know.
    """

    def __init__(self, text, opcodes_met, name=""):
        self.text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
        head, _, body = self.text.partition(".visible .entry")[2].partition("{")
        self.entry = head.split("(")[0].strip()
        self.name = name or self.entry
        self.params = re.findall(r"\.param\s[^,)]*?([\w$]+)\s*(?=[,)])", head)
        self.cooperative = "cudaCGGetIntrinsicHandle" in body
        self._met, self.lists = opcodes_met, []
        self.slots, self.constants = {}, {}
        for name in (*PLACES, *SHARED, *self.params):
            self._slot(name)
        self.constants |= {self._slot(name): value for name, value in GIVEN.items()}
        self.static, self.locals = self._place_arrays()
        self._scoped, self._labels, found = set(), {}, []
        for scope, statement in _statements(body):
            while match := LABEL.match(statement):
                self._labels[scope, match[1]] = len(found)
                statement = statement[match.end() :]
            if statement.startswith(".reg") and len(scope):
                self._declare(scope, statement)
            if statement and not statement.startswith("."):
                found.append((scope, statement))
        found.append(((), "ret"))
        self.statements = [statement for _, statement in found]
        self.products = np.array(["fma." in text for text in self.statements])
        rows = [self._row(*both) for both in found]
        self.code = np.array([[row[f] for f in FIELDS] for row in rows], np.int32)

    def _place_arrays(self):
        """Give shared and local arrays their addresses, dynamic ones behind the static;
        returns the bytes of both spaces.
        """
        end = {"shared": 0, "local": 0}
        array = r"\.(shared|local)\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\]"
        found = re.findall(array, self.text)
        for space, align, name, size in sorted(found, key=lambda row: not row[3]):
            end[space] += -end[space] % int(align)
            self.constants[self._slot(name)] = end[space]
            end[space] += int(size or 0)
        return end["shared"], end["local"] + -end["local"] % 16

    def _declare(self, scope, statement):
        for name, count in re.findall(r"([%\w$]+)(?:<(\d+)>)?\s*(?=,|$)", statement):
            names = [f"{name}{i}" for i in range(int(count))] if count else [name]
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

    def opcode(self, name):
        """The number of an opcode."""
        if name not in self._met:
            opcodes.statement(name)  # refuses what is not known
            self._met[name] = len(self._met)
        return self._met[name]

    def _row(self, scope, statement):
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
        except (KeyError, IndexError, ValueError) as error:
            raise NotImplementedError(f"{statement}: {error!r}") from error
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

        kind, first = parts[-1], parts[0]
        if name.startswith(SILENT):
            return {"op": self.opcode("nop")}
        if first == "bra":
            label = self._innermost(scope, texts[0], self._labels)
            return {"op": self.opcode("bra"), "d": self._labels[label]}
        if first in ("ret", "exit", "trap"):
            return {"op": self.opcode("trap" if first == "trap" else "ret")}
        if first == "call":
            waits = "cudaCGSynchronize" in texts
            if not waits and "cudaCGGetIntrinsicHandle" not in texts:
                raise ValueError(texts)
            return {"op": self.opcode("grid" if waits else "nop")}
        if name.startswith("ld.param"):
            source = address(texts[1])[0] if "retval" not in texts[1] else slot("0")
            op = self.opcode(f"mov.b{kind[1:]}")
            return {"op": op, "d": slot(texts[0]), "a": source}
        if "warp" in parts or first == "shfl":
            return self._collective(first, parts, texts, slot)
        if first in ("bar", "barrier"):
            if "popc" in parts:
                fields = {"d": slot(texts[0]), "a": slot(texts[2])}
                return {"op": self.opcode("bar"), "n": 1} | fields
            if "sync" not in parts or len(texts) > 1:
                raise ValueError(texts)
            return {"op": self.opcode("bar"), "n": 0}
        if name.startswith("cp.async"):
            return self._copy(parts, texts, slot, address)
        if first in ("ld", "st", "atom", "red"):
            return self._memory(first, parts, texts, slot, several, address)
        if first == "mov" and "{" in texts[0] + texts[1]:
            split = texts[0][0] == "{"
            low, high = several(texts[0 if split else 1])
            fields = {"d": low, "b": high, "a": slot(texts[1])} if split else {}
            fields = fields or {"d": slot(texts[0]), "a": low, "b": high}
            return {"op": self.opcode(f"{'un' * split}pack.{kind}")} | fields
        operands = dict(zip("dabc", map(slot, texts), strict=False))
        return {"op": self.opcode(name)} | operands

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
            operation = next(part for part in parts if part in opcodes.UPDATES)
            operands = dict(zip("bc", map(slot, texts[2:]), strict=False))
            op = self.opcode(f"atom.{operation}.{kind}")
            return {"op": op, "d": slot(value)} | fields | operands
        if first == "st" or kind[0] != "s":
            kind = f"b{kind[1:]}"
        values = several(value)
        fields |= {"list": self._list(values), "n": len(values)}
        return {"op": self.opcode(f"{first}.{kind}")} | fields

    def _collective(self, first, parts, texts, slot):
        """What the lanes of a warp do together."""
        if first == "shfl":
            d, _, inside = texts[0].partition("|")
            lists = self._list([slot(texts[4]), slot(inside or "%unused")])
            fields = dict(zip("dabc", map(slot, [d, *texts[1:4]]), strict=True))
            kind = {"op": self.opcode("shfl"), "n": SHUFFLES[parts[2]]}
            return kind | {"list": lists} | fields
        return {"op": self.opcode("warp"), "list": self._list([slot(texts[0])]), "n": 0}

    def _copy(self, parts, texts, slot, address):
        if parts[2] in ("commit_group", "wait_group", "wait_all"):
            op = self.opcode("commit" if parts[2] == "commit_group" else "await")
            most = int(texts[0]) if texts else -(parts[2] == "wait_all")
            return {"op": op, "n": most}
        (to, offset), (source, shift) = map(address, texts[:2])
        fields = {"d": to, "offset": offset, "a": source, "list": shift}
        return {"op": self.opcode("copy"), "n": int(texts[2]), "space": 2} | fields

    def product_loops(self):
        """(first, end) of the innermost loops with at least eight multiply-adds."""
        jumps = np.flatnonzero(self.code[:, 0] == self._met.get("bra", -1))
        loops = [(self.code[pc, FIELDS.index("d")], pc + 1) for pc in jumps]
        loops = [(first, end) for first, end in loops if first < end]

        def holds(loop, other):
            return loop != other and loop[0] <= other[0] and other[1] <= loop[1]

        inner = [a for a in loops if not any(holds(a, b) for b in loops)]
        return [
            (first, end) for first, end in inner if self.products[first:end].sum() >= 8
        ]


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
