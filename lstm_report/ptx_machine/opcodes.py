"""Opcodes of PTX as statements of C, from their names: types, rounding, comparisons.

D, A, B and C are a thread's registers that a row names, of the type that follows.
"""

COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
WAITS = {"bar": "AT_BARRIER", "grid": "AT_GRID", "warp": "AT_WARP"}
CONTROL = {
    "bra": "if (r->d <= pc && ++turns > m->most) STOP(ENDLESS); pc = r->d - 1; break;",
    "ret": "t->pc = pc; t->status = DONE; m->changed = 1; return;",
    "trap": "STOP(TRAPPED);",
    "nop": "break;",
    "copy": "if (!queue(m, b, t, r)) return; break;",
    "commit": "t->group++; break;",
    "await": "if (!arrive(m, b, t, r)) return; break;",
}
CONTROL |= {k: f"t->pc = pc; t->status = {v}; return;" for k, v in WAITS.items()}
# Approximations are computed exactly, and rounded.
ROOTS = {"ex2": "exp2({})", "rcp": "1 / {}", "sqrt": "sqrt({})", "tanh": "tanh({})"}
ROOTS |= {"lg2": "log2({})", "rsqrt": "1 / sqrt({})"}
ROOTS |= {"sin": "sin({})", "cos": "cos({})"}
ROUNDED = {"rni": "nearbyint", "rmi": "floor", "rpi": "ceil", "rzi": "trunc"}
DIRECTED = {"rz": 0, "rm": -1, "rp": 1}
UPDATES = {
    "add": "old + B({0})",
    "and": "old & B({0})",
    "or": "old | B({0})",
    "xor": "old ^ B({0})",
    "min": "old < B({0}) ? old : B({0})",
    "max": "old > B({0}) ? old : B({0})",
    "inc": "old >= B({0}) ? 0 : old + 1",
    "dec": "old == 0 || old > B({0}) ? B({0}) : old - 1",
    "exch": "B({0})",
    "cas": "old == B({0}) ? C({0}) : old",
}
# What is done to bits, by names without a type: its result's type, and expression.
BITS = {
    "popc": ("u32", "__builtin_popcountll(A({0}))"),
    "clz": ("u32", "A({0}) ? __builtin_clzll(A({0})) - (64 - {1}) : {1}"),
    "bfind": ("u32", "A({0}) ? 63 - __builtin_clzll(A({0})) : -1"),
    "bfind.shiftamt": ("u32", "A({0}) ? __builtin_clzll(A({0})) - (64 - {1}) : -1"),
    "brev": ("{0}", "reversed(A({0}), {1})"),
    "bfe": ("{0}", "field(A({0}), B(u32), C(u32), {2})"),
    "bfi": ("{0}", "inserted(A({0}), B({0}), C(u32), R[r->list].u32)"),
    "shf.l": ("b32", "(B(b32) * (1ull << 32) | A(b32)) << {3} >> 32"),
    "shf.r": ("b32", "(B(b32) * (1ull << 32) | A(b32)) >> {3}"),
}
SHARED_WINDOW, LOCAL_WINDOW = 1 << 44, 1 << 45  # of generic addresses


def number(opcode):
    """The number of an opcode; NotImplementedError for one that is not known."""
    if opcode not in NUMBERS:
        statement(opcode)
        NUMBERS[opcode] = len(NAMES)
        NAMES.append(opcode)
    return NUMBERS[opcode]


def statement(opcode):
    """The C of an opcode; NotImplementedError for one that is not known."""
    try:
        return _statement(opcode)
    except LookupError as error:
        raise NotImplementedError(opcode) from error


def _statement(opcode):
    if opcode in CONTROL:
        return CONTROL[opcode]
    name, *parts = opcode.split(".")
    kind = parts[-1]
    if name in ("ld", "st"):
        return f"{'LOAD' if name == 'ld' else 'STORE'}({kind}) break;"
    if name == "atom":
        return f"UPDATE({kind}, {UPDATES[parts[0]].format(kind)}) break;"
    if name in ("pack", "unpack"):
        half = f"b{int(kind[1:]) // 2}"
        if name == "pack":
            return f"D({kind}) = A({half}) | ({kind})B({half}) << {half[1:]}; break;"
        low = f"{kind} x = A({kind}); D({half}) = x; B({half}) = x >> {half[1:]};"
        return f"{{ {low} }} break;"
    if name == "cvta":
        window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(parts[-2], 0)
        return f"D(u64) = A(u64) {'-' if parts[0] == 'to' else '+'} {window}ull; break;"
    kind, text = _result(name, parts)
    return f"D({kind}) = {text}; break;"


def _result(name, parts):
    """The type of a result, and it as an expression."""
    kind, bits = parts[-1], parts[-1][1:]
    real, unsigned = kind[0] == "f", "u" + bits
    a, b, c = (f"{register}({kind})" for register in "ABC")
    if name == "setp":
        return "pred", _compared(parts, a, b)
    if name == "selp":
        return kind, f"C(pred) ? {a} : {b}"
    if name == "mov":
        return kind, f"!!{a}" if kind == "pred" else a
    if name == "not":
        return kind, f"!{a}" if kind == "pred" else f"~{a}"
    if name in ("and", "or", "xor"):
        return kind, f"{a} {SIGNS[name]} {b}"
    if name == "cvt":
        return _converted(parts)
    if name in ("addc", "subc", "madc") or "cc" in parts:
        return unsigned, _carried(name, parts, bits)
    bitwise = f"{name}.{parts[0]}" if parts[0] in ("l", "r", "shiftamt") else name
    if bitwise in BITS and (name != "bfind" or kind[0] == "u"):
        shift = "(C(u32) & 31)" if "wrap" in parts else "(C(u32) < 32 ? C(u32) : 32)"
        words = kind, bits, int(kind[0] == "s"), shift
        return tuple(text.format(*words) for text in BITS[bitwise])
    if name in ROOTS:
        text = ROOTS[name].format(f"(f64){a}")
        if parts[-1] == "f64" and "approx" in parts:
            return kind, f"upper_half({text})"
        return kind, f"flushed({text})" if "ftz" in parts else text
    if name in ("min", "max"):
        smaller = f"{a} {'<' if name == 'min' else '>'} {b}"
        if not real:
            return kind, f"{smaller} ? {a} : {b}"
        sign = "signbit" if name == "min" else "!signbit"
        smaller = f"{smaller} || ({a} == {b} && {sign}({a})) ? {a} : {b}"
        return kind, f"isnan({a}) ? {b} : isnan({b}) ? {a} : {smaller}"
    if real:
        return kind, _computed(name, parts, a, b, c)
    if name == "neg":
        return kind, f"0 - {a}"
    if name == "abs":
        return kind, f"{a} < 0 ? 0 - {a} : {a}"
    if name in ("add", "sub") and len(parts) == 1:
        return kind, f"{a} {SIGNS[name]} {b}"
    if name in ("mul", "mad"):
        wide = kind[0] + str(2 * int(bits))
        product = f"({wide}){a} * ({wide}){b}"
        kind = wide if parts[0] == "wide" else kind
        product = f"({product}) >> {bits}" if parts[0] == "hi" else product
        return kind, product + (f" + C({kind})" if name == "mad" else "")
    if name in ("div", "rem"):  # the two that C leaves undefined
        by_zero, inverse = ("-1", f"0 - {a}") if name == "div" else (a, "0")
        quotient = f"{a} {'/' if name == 'div' else '%'} {b}"
        negative = f"{b} == -1 ? {inverse} : " if kind[0] == "s" else ""
        return kind, f"{b} == 0 ? {by_zero} : {negative}{quotient}"
    if name == "shr" and kind[0] == "s":
        return kind, f"{a} >> (B(u32) < {bits} ? B(u32) : {bits} - 1)"
    if name in ("shl", "shr"):
        shifted = f"A({unsigned}) {'<<' if name == 'shl' else '>>'} B(u32)"
        return unsigned, f"B(u32) < {bits} ? {shifted} : 0"
    raise NotImplementedError(".".join([name, *parts]))


def _carried(name, parts, bits):
    """A sum that takes the carry flag, sets it, or both."""
    x, y = f"A(u{bits})", f"B(u{bits})"
    if name[:3] == "mad":
        shift = f" >> {bits}" if "hi" in parts else ""
        x, y = f"(u{bits})(({x} * (u128){y}){shift})", f"C(u{bits})"
    sign = "-" if name[:3] == "sub" else "+"
    total = f"(u128){x} {sign} {y}" + f" {sign} t->carry" * (name[-1] == "c")
    return f"carried(t, {total}, {bits}, {int('cc' in parts)})"


def _compared(parts, a, b):
    test = parts[0]
    if "ftz" in parts:
        a, b = f"flushed({a})", f"flushed({b})"
    if test in ("num", "nan"):
        text = f"{'!' if test == 'num' else ''}(isnan({a}) || isnan({b}))"
    elif test[-1] == "u" and parts[-1][0] == "f":  # true also without an order
        text = f"{a} {COMPARE[test[:-1]]} {b} || isnan({a}) || isnan({b})"
    elif test == "ne" and parts[-1][0] == "f":
        text = f"{a} < {b} || {a} > {b}"
    else:
        text = f"{a} {COMPARE[test]} {b}"
    joined = [part for part in parts[1:-1] if part in SIGNS]
    return f"(({text}) {SIGNS[joined[0]]} C(pred)) & 1" if joined else text


def _computed(name, parts, a, b, c):
    """Arithmetic of real numbers, which is rounded to the nearest."""
    kind = parts[-1]
    if "ftz" in parts:
        a, b, c = (f"flushed({operand})" for operand in (a, b, c))
    suffix = "f" if kind == "f32" else ""
    if way := next((part for part in parts if part in DIRECTED), None):
        operands = {"add": (a, "1", b), "mul": (a, b, "0"), "fma": (a, b, c)}
        if kind == "f64" or name not in operands:
            raise NotImplementedError(".".join([name, *parts]))
        text = f"directed({', '.join(operands[name])}, {DIRECTED[way]})"
    elif name in ("fma", "mad"):
        text = f"fma{suffix}({a}, {b}, {c})"
    elif name == "copysign":
        text = f"copysign{suffix}({b}, {a})"
    elif name == "neg":
        text = f"-{a}"
    elif name == "abs":
        text = f"fabs{suffix}({a})"
    elif name in ("add", "sub", "mul", "div"):
        text = f"{a} {SIGNS.get(name, '/')} {b}"
    else:
        raise NotImplementedError(".".join([name, *parts]))
    text = f"flushed({text})" if "ftz" in parts else text
    return f"saturated({text})" if "sat" in parts else text


def _converted(parts):
    to, source = parts[-2:]
    a = f"A({source})"
    a = f"flushed({a})" if "ftz" in parts and source == "f32" else a
    if "sat" in parts and to[0] == "f":
        return to, f"saturated({a})"
    if "sat" in parts or "f16" in (to, source):
        raise NotImplementedError(".".join(["cvt", *parts]))
    rounding = next((ROUNDED[part] for part in parts if part in ROUNDED), "")
    if to[0] == "f":
        return to, f"({to}){rounding}({a})"
    if source[0] != "f":
        return "s64", f"({to}){a}"  # fills the register
    return "s64", f"to_integer({rounding}({a}), {to[1:]}, {int(to[0] == 's')})"


# Of opcodes met in this process; both grow.
NAMES: list[str] = []
NUMBERS: dict[str, int] = {}
