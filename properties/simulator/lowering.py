"""Lower instructions to NumPy source: `LOWERINGS` at the end has an entry per operation."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from . import ptx
from .analysis import LINEAR
from .frontend import Function, Instruction, Type
from .numerics import ELEMENTS, ROUNDING
from .writer import FunctionWriter, Lowering, Module, Unsupported, tuple_of

Writer = FunctionWriter


def rounded(element: str, expression: str) -> str:
    return f"round_{short(element)}({expression})" if element in ROUNDING else expression


def short(element: str) -> str:
    return element.lower().removesuffix("fn")


def value_dtype(element: str) -> str:
    return f"np.{ELEMENTS[element].value.name}"


def elementwise(template: str, rounds: bool = True, on_bool: str = "") -> Lowering:
    """`{0}`, `{1}`, `{2}` are the operands; `on_bool` is the same operation for i1."""

    def lower(w: Writer, i: Instruction) -> None:
        element = i.type.element
        chosen = on_bool if on_bool and element == "i1" else template
        text = chosen.format(*w.uses(i))
        w.define(i.results[0], rounded(element, text) if rounds else text)

    return lower


def linear(symbol: str, ufunc: str, on_bool: str) -> Lowering:
    """Integer arithmetic; values that affect addresses stay exact in int64.

    With fewer index bits, all other 32-bit counts must fit too, since a wrapped comparison or trip
    count would go unnoticed.
    """
    plain = elementwise(f"{{0}} {symbol} {{1}}", on_bool=f"{{0}} {on_bool} {{1}}")

    def lower(w: Writer, i: Instruction) -> None:
        if i.results[0] not in w.facts.wide:
            plain(w, i)
            if i.type.element == "i32" and i.results[0] not in w.facts.quantities:
                fits(w, i)
            return
        left, right = (w.name(name) for name in i.operands)
        exact = any(name in w.facts.wide for name in i.operands)
        text = f"{left} {symbol} {right}" if exact else f"{ufunc}({left}, {right}, dtype=np.int64)"
        w.define(i.results[0], text)
        if i.results[0] in w.facts.narrowed:
            fits(w, i)

    return lower


def fits(w: Writer, i: Instruction) -> None:
    """With fewer index bits, check that this 32-bit integer fits."""
    made_of = i.operands if i.name in LINEAR else []
    values = "".join(f", {w.name(name)}" for name in (*i.results, *made_of))
    w.emit(f"if slab.few: slab.fits({w.site(i)}, {w.pred}{values})")


def division(template: str, signed: bool) -> Lowering:
    plain = elementwise(template)

    def lower(w: Writer, i: Instruction) -> None:
        if not re.match(r"(dense<)?[1-9]", w.facts.constant(i.operands[1])):
            left, right = w.uses(i)
            w.emit(f"slab.check_division({w.site(i)}, {left}, {right}, {signed}, {w.pred})")
        plain(w, i)

    return lower


def poison(w: Writer, i: Instruction) -> None:
    text = f"np.zeros({(1,) * (i.type.rank + 1)}, {value_dtype(i.type.element)})"
    w.names[i.results[0]] = w.module.constant(i.results[0], text)


def make_range(w: Writer, i: Instruction) -> None:
    text = f"np.arange({i.integer('start')}, {i.integer('end')}, dtype=np.int32)[None]"
    w.names[i.results[0]] = w.module.constant(f"range_{i.integer('end')}", text)


def constant(w: Writer, i: Instruction) -> None:
    kind = i.type
    text = i.attributes["value"].rpartition(" : ")[0] or i.attributes["value"]
    text = text.removeprefix("dense<").removesuffix(">")
    if text.startswith('"'):
        raise Unsupported(i, "a constant in hexadecimal blocks")
    numbers = [literal(number, kind.element) for number in re.findall(r"[^\[\],\s]+", text)]
    shape = (1, *kind.shape) if text.startswith("[") else (1,) * (kind.rank + 1)
    array = f"np.array([{', '.join(numbers)}], {value_dtype(kind.element)}).reshape{shape}"
    hint = numbers[0] if i.results[0][1:].isdigit() else i.results[0]
    # Narrow types print only the digits that identify a value.
    w.names[i.results[0]] = w.module.constant(hint, rounded(kind.element, array))


def literal(text: str, element: str) -> str:
    """A number of the IR as a Python expression; hexadecimal floats are bit patterns."""
    if text in ("true", "false"):
        return text.capitalize()
    if "f" in element and text.startswith("0x"):
        bits = bytes.fromhex(text[2:] + ("0000" if element == "bf16" else ""))
        value = struct.unpack({2: ">e", 4: ">f", 8: ">d"}[len(bits)], bits)[0]
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    return text


def of_axis(attribute: str) -> Lowering:
    def lower(w: Writer, i: Instruction) -> None:
        w.define(i.results[0], f"slab.{attribute}[{i.integer('axis')}]")

    return lower


def shaping(text: Callable[[Instruction, Type], str]) -> Lowering:
    """A change of shape: `text` follows the array, or replaces it if it has a `{}`."""

    def lower(w: Writer, i: Instruction) -> None:
        (source,) = i.operands
        change = text(i, w.type(source))
        change = change if "{}" in change else "{}" + change
        # A wide value stays wide through a change of shape if the result is wide too.
        name = w.name(source) if i.results[0] in w.facts.wide else w.use(source)
        if i.type.is_pointer:
            w.define(i.results[0], f"({name}[0], {change.format(name + '[1]')})")
        else:
            w.define(i.results[0], change.format(name))

    return lower


def broadcast(w: Writer, i: Instruction) -> None:
    """Emit nothing: axes of length 1 broadcast."""
    (source,), (result,) = i.operands, i.results
    if source in w.facts.wide and result not in w.facts.wide:
        w.define(result, w.use(source))
    else:
        w.alias(result, source)


def expand_dims(i: Instruction, _: Type) -> str:
    return "[" + ":, " * (i.integer("axis") + 1) + "None]"


def splat(i: Instruction, _: Type) -> str:
    return f".reshape(-1{', 1' * i.type.rank})"


def transpose(i: Instruction, _: Type) -> str:
    return f".transpose(0, {', '.join(str(axis + 1) for axis in i.integers('order'))})"


def reshaped(i: Instruction, source: Type) -> str:
    return f"reshape({{}}, {source.shape}, {i.type.shape})"


INTEGER_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "u<", "u<=", "u>", "u>=")


def compare_integers(w: Writer, i: Instruction) -> None:
    symbol = INTEGER_COMPARISONS[i.integer("predicate")]
    left, right = w.uses(i)
    if symbol.startswith("u"):
        left, right, symbol = f"unsigned({left})", f"unsigned({right})", symbol[1:]
    elif w.type(i.operands[0]).element == "i1" and symbol[0] in "<>":
        # True is -1 as a signed number of one bit.
        left, right = right, left
    w.define(i.results[0], f"{left} {symbol} {right}")


FLOAT_COMPARISONS = {
    1: "{0} == {1}",
    2: "{0} > {1}",
    3: "{0} >= {1}",
    4: "{0} < {1}",
    5: "{0} <= {1}",
    6: "({0} < {1}) | ({0} > {1})",
    7: "({0} == {0}) & ({1} == {1})",
    8: "~(({0} < {1}) | ({0} > {1}))",
    9: "~({0} <= {1})",
    10: "~({0} < {1})",
    11: "~({0} >= {1})",
    12: "~({0} > {1})",
    13: "{0} != {1}",
    14: "({0} != {0}) | ({1} != {1})",
}


def compare_floats(w: Writer, i: Instruction) -> None:
    predicate = i.integer("predicate")
    if predicate not in FLOAT_COMPARISONS:
        raise Unsupported(i, f"predicate {predicate}")
    w.define(i.results[0], FLOAT_COMPARISONS[predicate].format(*w.uses(i)))


def select(w: Writer, i: Instruction) -> None:
    condition, one, two = w.uses(i)
    if i.type.rank and not w.type(i.operands[0]).rank:
        condition += splat(i, i.type)
    chosen = "choose" if i.type.is_pointer else "np.where"
    w.define(i.results[0], f"{chosen}({condition}, {one}, {two})")


def convert(w: Writer, i: Instruction) -> None:
    """Between float types, between integer types, and from integer to float."""
    (operand,), (result,) = i.operands, i.results
    source, target = w.type(operand).element, i.type.element
    value = w.use(operand)
    if target in ROUNDING and i.attributes.get("rounding", TO_NEAREST) != TO_NEAREST:
        raise Unsupported(i, "a rounding mode")
    if i.name in ("arith.uitofp", "arith.extui") and source != "i1":
        value = f"unsigned({value})"
    if i.name == "arith.extsi" and source == "i1":
        value = f"-{value}.view(np.int8)"
    if i.name == "arith.extsi" and operand in w.facts.wide and result in w.facts.addressing:
        w.define(result, f"slab.widen({w.site(i)}, {w.name(operand)}, {w.pred})")
    elif i.name == "arith.trunci" and target == "i1":
        w.define(result, f"({value} & 1) != 0")
    elif target in ROUNDING:
        integer = i.name in ("arith.sitofp", "arith.uitofp")
        w.define(result, rounded(target, f"{value}.astype(np.float32)" if integer else value))
    elif ELEMENTS[source].value == ELEMENTS[target].value:
        w.define(result, value)
    else:
        w.define(result, f"{value}.astype({value_dtype(target)})")


TO_NEAREST = "1 : i32"


def to_integer(w: Writer, i: Instruction) -> None:
    dtype, value = value_dtype(i.type.element), w.use(i.operands[0])
    if i.name == "arith.fptoui":
        unsigned = dtype.replace("np.", "np.u")
        w.define(i.results[0], f"to_integer({value}, {unsigned}).view({dtype})")
    else:
        w.define(i.results[0], f"to_integer({value}, {dtype})")


def bitcast(w: Writer, i: Instruction) -> None:
    source, target, value = w.type(i.operands[0]), i.type, w.use(i.operands[0])
    if target.is_pointer:
        w.define(i.results[0], f"recast({value}, {target.pointee!r})")
    elif source.element == target.element:
        w.define(i.results[0], value)
    else:
        w.define(i.results[0], f"bitcast({value}, {source.element!r}, {target.element!r})")


def add_pointer(w: Writer, i: Instruction) -> None:
    pointer, offset = i.operands
    advance = "slab.advance" if offset in w.facts.wide else "advance"
    size = ELEMENTS[i.type.pointee].size
    w.define(i.results[0], f"{advance}({w.name(pointer)}, {w.name(offset)}, {size})")


def memory(w: Writer, i: Instruction) -> None:
    """A load, store or atomic: its site, operands and predicate."""
    kind = w.type(i.operands[0])
    if not kind.is_pointer:
        raise Unsupported(i, "not a plain pointer")
    method = i.name.removeprefix("tt.").partition("_")[0]
    arguments = [w.site(i, kind.pointee, w.facts.narrow(i.operands[0]))]
    if i.name == "tt.atomic_rmw":
        arguments.append(repr(ATOMICS[i.integer("atomic_rmw_op")]))
    elif i.name == "tt.atomic_cas":
        arguments.append("'cas'")
    arguments += w.uses(i)
    if w.pred != "None":
        arguments.append(f"pred={w.pred}")
    if i.name == "tt.atomic_rmw" and not w.facts.uses[i.results[0]]:
        arguments.append("wanted=False")
    text = f"slab.{method}({', '.join(arguments)})"
    if i.results:
        w.define(i.results[0], text)
        if i.name == "tt.load" and i.type.element == "i32":
            fits(w, i)
    else:
        w.emit(text)


ATOMICS = ("", "and", "or", "xor", "add", "fadd", "max", "min", "umax", "umin", "exch")


def dot(w: Writer, i: Instruction) -> None:
    left, right, bias = w.uses(i)
    if re.match(r"dense<0(\.0+e\+00)?>", w.facts.constant(i.operands[2])):
        bias = "None"
    a = w.type(i.operands[0])
    if i.attributes.get("inputPrecision") == TF32 and a.element == "f32":
        left, right = f"slab.dot_operand({left})", f"slab.dot_operand({right})"
    text = f"dot({left}, {right}, {bias}, {a.shape[-1]})"
    w.define(i.results[0], rounded(i.type.element, text))


TF32 = "0 : i32"


def along_axis(function: str) -> Lowering:
    """A reduction or a scan; its region becomes a function of its own."""

    def lower(w: Writer, i: Instruction) -> None:
        if len(i.regions[0]) != 1:
            raise Unsupported(i, "branches in its region")
        (block,) = i.regions[0]
        combine = w.module.fresh("combine")
        parameters = ", ".join(w.name(argument) for argument, _ in block.arguments)
        with w.indented(f"def {combine}({parameters}):"):
            w.emit(f"return {tuple_of(w.uses(w.block(block)))}")
        tile = w.type(i.operands[0]).shape
        arguments = f"{combine}, {tuple_of(w.uses(i))}, {i.integer('axis')}, {tile}"
        if "reverse" in i.attributes:
            arguments += f", {i.attributes['reverse'].capitalize()}"
        w.define_all(i.results, f"{function}({arguments})")

    return lower


def for_loop(w: Writer, i: Instruction) -> None:
    (body,) = i.regions[0]
    low, high, step, *initial = w.uses(i)
    (induction, _), *arguments = body.arguments
    carried = [name for name, _ in arguments]
    for name, init in zip(carried, initial, strict=True):
        w.emit(f"{w.name(name)} = {init}")
    inside, outer = w.module.fresh("in_loop"), w.pred
    turns = f"slab.counted({w.site(i)}, {low}, {high}, {step}, {outer})"
    with w.indented(f"for {w.name(induction)}, {inside} in {turns}:", inside):
        carry(w, inside, outer, carried, w.uses(w.block(body)))
    for result, name in zip(i.results, carried, strict=True):
        w.alias(result, name)


def carry(w: Writer, inside: str, outer: str, targets: list[str], values: list[str]) -> None:
    """Pass values to a loop's next iteration; programs that have left keep their old ones."""
    names = [w.name(target) for target in targets]
    changed = [(old, new) for old, new in zip(names, values, strict=True) if old != new]
    if changed:
        old, new = (tuple_of(side) for side in zip(*changed, strict=True))
        w.emit(f"{old} = carried({inside}, {outer}, {new}, {old})")


def if_else(w: Writer, i: Instruction) -> None:
    sides = [w.module.fresh("then"), w.module.fresh("else")]
    w.emit(f"{', '.join(sides)} = branch({w.pred}, {w.use(i.operands[0])})")
    already = "False"
    for side, (block,) in zip(sides, i.regions, strict=False):
        with w.indented(f"if {side} is not False:", side):
            for result, new in zip(i.results, w.packed(block, side), strict=True):
                w.join(w.name(result), new, side, already)
        already = side


def while_loop(w: Writer, i: Instruction) -> None:
    (before,), (after,) = i.regions
    carried = [name for name, _ in before.arguments]
    for name, init in zip(carried, w.uses(i), strict=True):
        w.emit(f"{w.name(name)} = {init}")
    for result in i.results:
        w.emit(f"{w.name(result)} = None")
    looping, again, outer = w.module.fresh("in_while"), w.module.fresh("again"), w.pred
    w.emit(f"{looping} = {outer}")
    with w.indented("while True:", looping):
        w.emit(f"slab.tick({w.site(i)})")
        condition, *passed = w.uses(w.block(before))
        w.emit(f"{again}, _ = branch({looping}, {condition})")
        carry(w, looping, outer, i.results, passed)
        w.emit(f"if {again} is False:")
        w.emit("    break")
        for (name, _), value in zip(after.arguments, passed, strict=True):
            w.emit(f"{w.name(name)} = {value}")
        w.pred = again
        carry(w, again, outer, carried, w.uses(w.block(after)))
        w.emit(f"{looping} = {again}")


def call(w: Writer, i: Instruction) -> None:
    callee = w.module.names[i.attributes["callee"].removeprefix("@").strip('"')]
    w.define_all(i.results, f"{callee}({', '.join(['slab', w.pred, *w.uses(i)])})")


def nothing(w: Writer, i: Instruction) -> None:
    """A barrier does nothing: the elements of a tile advance together."""


def assertion(w: Writer, i: Instruction) -> None:
    """`tl.device_assert`, or `tl.assume`, which is checked too."""
    site = w.site(i, text=i.attributes.get("message", ""))
    w.emit(f"slab.check_assertion({site}, {w.use(i.operands[0])}, {w.pred})")


def device_print(w: Writer, i: Instruction) -> None:
    site = w.site(i, text=i.attributes["prefix"])
    w.emit(f"slab.show({site}, {tuple_of(w.uses(i))}, {w.pred})")


def clamp(w: Writer, i: Instruction) -> None:
    low, high = "np.fmax", "np.fmin"
    if i.attributes.get("propagateNan", NAN_DROPPED) != NAN_DROPPED:
        low, high = "np.maximum", "np.minimum"
    x, least, most = w.uses(i)
    w.define(i.results[0], f"{high}({low}({x}, {least}), {most})")


NAN_DROPPED = "0 : i32"


def split_last(w: Writer, i: Instruction) -> None:
    w.define_all(i.results, f"split({w.use(i.operands[0])})")


def concatenated(w: Writer, i: Instruction) -> None:
    one, two = w.uses(i)
    w.define(i.results[0], f"concatenate({one}, {two}, {w.type(i.operands[0]).shape})")


def gathered(w: Writer, i: Instruction) -> None:
    source, index = w.uses(i)
    shapes = f"{w.type(i.operands[0]).shape}, {i.type.shape}"
    text = f"{w.site(i)}, {source}, {index}, {i.integer('axis')}, {shapes}, {w.pred}"
    w.define(i.results[0], f"slab.gather({text})")


def histogram(w: Writer, i: Instruction) -> None:
    source, mask = (*w.uses(i), "None")[:2]
    length, bins = w.type(i.operands[0]).shape[0], i.type.shape[0]
    w.define(i.results[0], f"histogram({source}, {mask}, {length}, {bins})")


def external(w: Writer, i: Instruction) -> None:
    """A function of libdevice, by its symbol."""
    symbol = i.attributes["symbol"]
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    text = EXTERNAL.get(name) or EXTERNAL.get(name.removesuffix("f"))
    if text is None:
        raise Unsupported(i, symbol)
    w.define(i.results[0], rounded(i.type.element, text.format(*w.uses(i))))


def inline_assembly(w: Writer, i: Instruction) -> None:
    text = i.attributes["asm_string"]
    if ptx.orders_launches(text):
        # Launches run one after the other here. The results are unused.
        for name in i.results:
            zero = (
                f"np.zeros({(1,) * (w.type(name).rank + 1)}, {value_dtype(w.type(name).element)})"
            )
            w.names[name] = w.module.constant("unused", zero)
        return
    kinds = {w.type(name).element for name in (*i.results, *i.operands)}
    if kinds != {"f32"} or i.integer("packed_element") != 1:
        raise Unsupported(i, "other than float32, one lane at a time")
    try:
        lines, values = ptx.translate(text, len(i.results), w.uses(i), w.module.fresh)
    except ptx.UnknownAssembly as error:
        raise Unsupported(i, str(error)) from error
    for line in lines:
        w.emit(line)
    for result, value in zip(i.results, values, strict=True):
        w.define(result, value)


# Functions with one name in the math dialect and libdevice.
MATH = {
    **{name: f"np.{name}({{0}})" for name in ("exp", "exp2", "expm1", "log", "log10", "log2")},
    **{name: f"np.{name}({{0}})" for name in ("log1p", "sqrt", "sin", "cos", "tan", "sinh")},
    **{name: f"np.{name}({{0}})" for name in ("cosh", "tanh", "floor", "ceil", "trunc", "rint")},
    "rsqrt": "(1 / np.sqrt({0})).astype({0}.dtype)",
    "atan": "np.arctan({0})",
    "atan2": "np.arctan2({0}, {1})",
    "round": "np.copysign(np.floor(np.abs({0}) + {0}.dtype.type(0.5)), {0})",
    **{name: f"special({name!r}, {{0}})" for name in ("erf", "erfc")},
    **{name: f"np.arc{name[1:]}({{0}})" for name in ("asin", "acos", "asinh", "acosh", "atanh")},
    "fma": "fused_multiply_add({0}, {1}, {2})",
}
_TO_NEAREST = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "rcp": "1 / {0}",
    "sqrt": MATH["sqrt"],
    "rsqrt": MATH["rsqrt"],
}
EXTERNAL = {
    **MATH,
    "exp10": "np.power({0}.dtype.type(10), {0})",
    "pow": "np.power({0}, {1})",
    "fabs": "np.abs({0})",
    "fdivide": "{0} / {1}",
    "fmod": "np.fmod({0}, {1})",
    "fmax": "np.fmax({0}, {1})",
    "fmin": "np.fmin({0}, {1})",
    "fdim": "np.where({0} <= {1}, {0}.dtype.type(0), {0} - {1})",
    **{name: f"np.{name}({{0}}, {{1}})" for name in ("copysign", "hypot", "nextafter")},
    **{name: f"special({name!r}, {{0}})" for name in ("erfinv", "erfcx")},
    "normcdf": "special('ndtr', {0})",
    "lgamma": "special('gammaln', {0})",
    "cbrt": "np.cbrt({0})",
    "rcbrt": "1 / np.cbrt({0})",
    "nearbyint": "np.rint({0})",
    "saturate": "np.fmin(np.fmax({0}, {0}.dtype.type(0)), {0}.dtype.type(1))",
    "llrint": "to_integer(np.rint({0}), np.int64)",
    "float_as_int": "bitcast({0}, 'f32', 'i32')",
    "int_as_float": "bitcast({0}, 'i32', 'f32')",
    # To nearest, and not contracted with another operation.
    **{f"{kind}{name}_rn": text for kind in "fd" for name, text in _TO_NEAREST.items()},
    **dict.fromkeys(("fma_rn", "fmaf_rn"), MATH["fma"]),
    **dict.fromkeys(("finite", "isfinited"), "np.isfinite({0}).astype(np.int32)"),
    **dict.fromkeys(("signbit", "signbitd"), "np.signbit({0}).astype(np.int32)"),
    **dict.fromkeys(("isnanf", "isnand"), "np.isnan({0}).astype(np.int32)"),
    **dict.fromkeys(("isinff", "isinfd"), "np.isinf({0}).astype(np.int32)"),
}

LOWERINGS: dict[str, Lowering] = {
    # Integers
    "arith.constant": constant,
    "ub.poison": poison,
    "arith.addi": linear("+", "np.add", "^"),
    "arith.subi": linear("-", "np.subtract", "^"),
    "arith.muli": linear("*", "np.multiply", "&"),
    "arith.divsi": division("divide({0}, {1})", signed=True),
    "arith.divui": division("as_unsigned(np.floor_divide, {0}, {1})", signed=False),
    "arith.remsi": division("np.fmod({0}, {1})", signed=True),
    "arith.remui": division("as_unsigned(np.remainder, {0}, {1})", signed=False),
    "arith.floordivsi": division("{0} // {1}", signed=True),
    "arith.ceildivsi": division("-(-{0} // {1})", signed=True),
    "arith.andi": elementwise("{0} & {1}"),
    "arith.ori": elementwise("{0} | {1}"),
    "arith.xori": elementwise("{0} ^ {1}"),
    "arith.shli": elementwise("{0} << {1}"),
    "arith.shrsi": elementwise("{0} >> {1}"),
    "arith.shrui": elementwise("as_unsigned(np.right_shift, {0}, {1})"),
    "arith.maxsi": elementwise("np.maximum({0}, {1})"),
    "arith.minsi": elementwise("np.minimum({0}, {1})"),
    "arith.maxui": elementwise("as_unsigned(np.maximum, {0}, {1})"),
    "arith.minui": elementwise("as_unsigned(np.minimum, {0}, {1})"),
    "arith.cmpi": compare_integers,
    "math.absi": elementwise("np.abs({0})"),
    "tt.mulhiui": elementwise("as_unsigned(multiply_high, {0}, {1})"),
    # Floats
    "arith.addf": elementwise("{0} + {1}"),
    "arith.subf": elementwise("{0} - {1}"),
    "arith.mulf": elementwise("{0} * {1}"),
    "arith.divf": elementwise("{0} / {1}"),
    "arith.remf": elementwise("np.fmod({0}, {1})"),
    "arith.negf": elementwise("-{0}", rounds=False),
    "arith.maxnumf": elementwise("np.fmax({0}, {1})", rounds=False),
    "arith.minnumf": elementwise("np.fmin({0}, {1})", rounds=False),
    "arith.maximumf": elementwise("np.maximum({0}, {1})", rounds=False),
    "arith.minimumf": elementwise("np.minimum({0}, {1})", rounds=False),
    "arith.cmpf": compare_floats,
    **{f"math.{name}": elementwise(text) for name, text in MATH.items()},
    "math.absf": elementwise("np.abs({0})", rounds=False),
    "tt.precise_sqrt": elementwise("np.sqrt({0})"),
    "tt.precise_divf": elementwise("{0} / {1}"),
    "tt.clampf": clamp,
    "tt.extern_elementwise": external,
    "tt.elementwise_inline_asm": inline_assembly,
    # Conversions
    "arith.extsi": convert,
    "arith.extui": convert,
    "arith.trunci": convert,
    "arith.extf": convert,
    "arith.truncf": convert,
    "arith.sitofp": convert,
    "arith.uitofp": convert,
    "arith.index_cast": convert,
    "tt.fp_to_fp": convert,
    "arith.fptosi": to_integer,
    "arith.fptoui": to_integer,
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
    "arith.select": select,
    # Shapes
    "tt.make_range": make_range,
    "tt.splat": shaping(splat),
    "tt.unsplat": shaping(lambda i, source: ".reshape(-1)"),
    "tt.broadcast": broadcast,
    "tt.expand_dims": shaping(expand_dims),
    "tt.trans": shaping(transpose),
    "tt.reshape": shaping(reshaped),
    "tt.join": elementwise("join({0}, {1})", rounds=False),
    "tt.split": split_last,
    "tt.cat": concatenated,
    "tt.gather": gathered,
    "tt.histogram": histogram,
    # Memory
    "tt.addptr": add_pointer,
    "tt.ptr_to_int": elementwise("address_of({0})"),
    "tt.int_to_ptr": elementwise("(ANYWHERE, {0})"),
    "tt.load": memory,
    "tt.store": memory,
    "tt.atomic_rmw": memory,
    "tt.atomic_cas": memory,
    # Tiles as a whole
    "tt.dot": dot,
    "tt.reduce": along_axis("reduce"),
    "tt.scan": along_axis("scan"),
    # Programs and control
    "tt.get_program_id": of_axis("ids"),
    "tt.get_num_programs": of_axis("counts"),
    "scf.for": for_loop,
    "scf.if": if_else,
    "scf.while": while_loop,
    "tt.call": call,
    "ttg.barrier": nothing,
    "gpu.barrier": nothing,
    "tt.assert": assertion,
    "llvm.intr.assume": assertion,
    "tt.print": device_print,
}

# Properties that a lowering reads, and those without an effect here. Names with a dot are hints of
# a dialect. Any other name raises.
UNDERSTOOD = {
    *("value", "axis", "start", "end", "order", "predicate", "atomic_rmw_op", "symbol", "callee"),
    *("message", "prefix", "propagateNan", "inputPrecision", "reverse", "rounding", "isVolatile"),
    *("asm_string", "packed_element", "operandSegmentSizes"),
    *("fastmath", "overflowFlags", "cache", "evict", "sem", "scope", "boundaryCheck", "padding"),
    *("maxNumImpreciseAcc", "allow_reorder", "efficient_layout", "addrSpace", "hex", "isSigned"),
    *("libname", "libpath", "constraints", "pure", "op_bundle_sizes"),
}


def generate(functions: list[Function]) -> str:
    """Python source of an IR module.

    Raises:
        Unsupported: naming the operation and the kernel's source line.
    """
    return Module(functions, LOWERINGS, UNDERSTOOD).source()
