"""Opcodes of PTX as statements of C, from their names: types, rounding, comparisons.

D, A, B and C are a thread's registers that a row names, of the type that follows.
"""

COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
WAITS = {"bar": "AT_BARRIER", "grid": "AT_GRID", "warp": "AT_WARP"}
WAITS["shfl"] = "AT_WARP"
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
ROUNDED = {"rni": "nearbyint", "rmi": "floor", "rpi": "ceil", "rzi": "trunc"}
UPDATES = {
    "add": "old + B({0})",
    "exch": "B({0})",
    "cas": "old == B({0}) ? C({0}) : old",
}
SHARED_WINDOW, LOCAL_WINDOW = 1 << 44, 1 << 45  # of generic addresses


def statement(opcode):
    """The C of an opcode; NotImplementedError for one that is not known."""
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
    kind, text = result(name, parts)
    return f"D({kind}) = {text}; break;"


def is_known(opcode):
    try:
        return bool(statement(opcode))
    except (NotImplementedError, LookupError):
        return False


def result(name, parts):
    """The type of a result, and it as an expression."""
    kind, bits = parts[-1], parts[-1][1:]
    real, unsigned = kind[0] == "f", "u" + bits
    a, b, c = (f"{register}({kind})" for register in "ABC")
    if name == "setp":
        return "pred", compared(parts, a, b)
    if name == "selp":
        return kind, f"C(pred) ? {a} : {b}"
    if name == "mov":
        return kind, f"!!{a}" if kind == "pred" else a
    if name == "not":
        return kind, f"!{a}" if kind == "pred" else f"~{a}"
    if name in ("and", "or", "xor"):
        return kind, f"{a} {SIGNS[name]} {b}"
    if name == "cvt":
        return converted(parts)
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
        return kind, computed(name, parts, a, b, c)
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


def compared(parts, a, b):
    test = parts[0]
    if test in ("num", "nan"):
        text = f"{'!' if test == 'num' else ''}(isnan({a}) || isnan({b}))"
    elif test[-1] == "u" and parts[-1][0] == "f":  # true also without an order
        text = f"{a} {COMPARE[test[:-1]]} {b} || isnan({a}) || isnan({b})"
    elif test == "ne" and parts[-1][0] == "f":
        text = f"{a} < {b} || {a} > {b}"
    else:
        text = f"{a} {COMPARE[test]} {b}"
    if len(parts) == 2:
        return text
    return f"(({text}) {SIGNS[parts[1]]} C(pred)) & 1"


def computed(name, parts, a, b, c):
    """Arithmetic of real numbers, which is rounded to the nearest."""
    kind = parts[-1]
    if parts == ["rm", "f32"] and name == "fma":
        return f"fma_down({a}, {b}, {c})"
    if {"ftz", "rz", "rm", "rp", "sat"} & set(parts):
        raise NotImplementedError(".".join([name, *parts]))
    suffix = "f" if kind == "f32" else ""
    if name in ("fma", "mad"):
        return f"fma{suffix}({a}, {b}, {c})"
    if name == "neg":
        return f"-{a}"
    if name == "abs":
        return f"fabs{suffix}({a})"
    if name in ("add", "sub", "mul", "div"):
        return f"{a} {SIGNS.get(name, '/')} {b}"
    raise NotImplementedError(".".join([name, *parts]))


def converted(parts):
    to, source = parts[-2:]
    a = f"A({source})"
    if "sat" in parts and to[0] == "f":
        return to, f"isnan({a}) || {a} < 0 ? 0 : {a} > 1 ? 1 : {a}"
    if "sat" in parts or "f16" in (to, source):
        raise NotImplementedError(".".join(["cvt", *parts]))
    rounding = next((ROUNDED[part] for part in parts if part in ROUNDED), "")
    if to[0] == "f":
        return to, f"({to}){rounding}({a})"
    if source[0] != "f":
        return "s64", f"({to}){a}"  # fills the register
    return "s64", f"to_integer({rounding}({a}), {to[1:]}, {int(to[0] == 's')})"
