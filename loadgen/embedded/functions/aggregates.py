"""The allow-list of aggregates and window functions. Some are composed of several of PostgreSQL's."""

from __future__ import annotations

from loadgen.embedded.functions.function import FLOAT, INTEGER, Form, FunctionCall, OrderItem, SqlFunction, rows
from loadgen.embedded.sql_errors import unsupported


def _count(call: FunctionCall) -> str:
    """COUNT(a, b) counts the rows in which none is NULL."""
    if call.order_by:
        raise unsupported(f"{call.function.name} with WITHIN GROUP")
    if len(call.arguments) == 1:
        return call.part("count", *call.arguments)
    present = " AND ".join(f"{argument} IS NOT NULL" for argument in call.arguments)
    inside = f"({', '.join(call.arguments)})" if call.distinct else "*"
    return call.part("count", inside, where=present)


def _count_distinct(call: FunctionCall) -> str:
    return _count(FunctionCall(call.function, call.arguments, call.raw, True, call.order_by, call.over))


def _count_if(call: FunctionCall) -> str:
    return call.part("count", f"CASE WHEN {call.arguments[0]} THEN 1 END")


def _average(call: FunctionCall) -> str:
    return f"sf.average({call.part('sum', *call.arguments)}, {call.part('count', *call.arguments)})"


def _variance(name: str) -> Form:
    return lambda call: f"sf.variance({call.part(name, *call.arguments)}, {call.part('sum', *call.arguments)})"


def _collected(name: str) -> Form:
    """A function over the array of all values of the group."""
    return lambda call: f"{name}({call.part('array_agg', call.arguments[0])})"


def _median(call: FunctionCall) -> str:
    return f"sf.percentile_cont({call.part('array_agg', *call.arguments)}, 0.5)"


def _percentile(name: str) -> Form:
    """PERCENTILE_x(fraction) WITHIN GROUP (ORDER BY value [DESC]), also as a window function."""

    def form(call: FunctionCall) -> str:
        if len(call.order_by) != 1:
            raise unsupported(f"{call.function.name} without one value to order by")
        (item,) = call.order_by
        inner = FunctionCall(call.function, (), (), call.distinct, (), call.over)
        values = inner.part("array_agg", f"sf.as_number({item.value})")
        return f"{name}({values}, {call.arguments[0]}, {str(item.descending).lower()})"

    return form


def _approx_percentile(call: FunctionCall) -> str:
    value, fraction = call.arguments
    return f"sf.percentile_cont({call.part('array_agg', f'sf.cast_float({value})')}, {fraction})"


def _listagg(call: FunctionCall) -> str:
    value, *delimiter = call.arguments
    return f"coalesce({call.part('string_agg', value, *(delimiter or [repr('')]))}, '')"


def _array_agg(call: FunctionCall) -> str:
    return f"coalesce({call.part('jsonb_agg_strict', *call.arguments)}, '[]'::jsonb)"


def _array_unique_agg(call: FunctionCall) -> str:
    return _array_agg(FunctionCall(call.function, call.arguments, call.raw, True, call.order_by, call.over))


def _object_agg(call: FunctionCall) -> str:
    text = call.part("jsonb_object_agg_unique_strict", *call.arguments, where=f"{call.arguments[0]} IS NOT NULL")
    return f"coalesce({text}, '{{}}'::jsonb)"


def _extreme_by(*, descending: bool) -> Form:
    """MIN_BY(value, key[, n]): the value of the row with the least key, or an array of the n first."""

    def form(call: FunctionCall) -> str:
        value, key, *count = call.arguments
        ordered = FunctionCall(
            call.function, (), (), call.distinct, (OrderItem(value=key, descending=descending),), call.over
        )
        found = ordered.part("array_agg", value, where=f"{key} IS NOT NULL")
        return f"to_jsonb(({found})[1:{count[0]}::integer])" if count else f"({found})[1]"

    return form


def _hash_agg(call: FunctionCall) -> str:
    columns = ", ".join(argument.text for argument in call.raw)
    return f"sf.wrapped(coalesce({call.part('sum', f'hash_record_extended(ROW({columns}), 0)')}, 0))"


def _boolxor(call: FunctionCall) -> str:
    return f"({call.part('count', f'CASE WHEN {call.arguments[0]} THEN 1 END')} = 1)"


def _bits(name: str) -> Form:
    return lambda call: call.part(name, f"({call.arguments[0]})::bigint")


def _ratio(call: FunctionCall) -> str:
    return f"sf.div({call.arguments[0]}, nullif({call.part('sum', *call.arguments)}, 0))"


def _grouping(call: FunctionCall) -> str:
    if call.distinct or call.order_by or call.over is not None:
        raise unsupported(f"{call.function.name} with DISTINCT, WITHIN GROUP or OVER")
    return call.part("grouping", *call.arguments)


AGGREGATES: list[SqlFunction] = [
    *rows("COUNT", "1-", _count, kind="aggregate", result=INTEGER),
    *rows("COUNT_IF", "1", _count_if, kind="aggregate", result=INTEGER),
    *rows("APPROX_COUNT_DISTINCT HLL", "1-", _count_distinct, kind="aggregate", result=INTEGER),
    *rows("SUM", "1", "sum", "n", kind="aggregate"),
    *rows("AVG", "1", _average, "n", kind="aggregate"),
    *rows("MIN", "1", "sf.min", kind="aggregate"),
    *rows("MAX", "1", "sf.max", kind="aggregate"),
    *rows("ANY_VALUE", "1", "any_value", kind="aggregate"),
    *rows("MEDIAN", "1", _median, "n", kind="aggregate"),
    *rows("MODE", "1", _collected("sf.mode"), kind="aggregate"),
    *rows("PERCENTILE_CONT", "1", _percentile("sf.percentile_cont"), "i", kind="aggregate"),
    *rows("PERCENTILE_DISC", "1", _percentile("sf.percentile_disc"), "i", kind="aggregate"),
    *rows("APPROX_PERCENTILE", "2", _approx_percentile, "fi", kind="aggregate"),
    *rows("STDDEV STDDEV_SAMP", "1", "stddev_samp", "n", kind="aggregate", result=FLOAT),
    *rows("STDDEV_POP", "1", "stddev_pop", "n", kind="aggregate", result=FLOAT),
    *rows("VARIANCE VARIANCE_SAMP VAR_SAMP", "1", _variance("var_samp"), "n", kind="aggregate"),
    *rows("VARIANCE_POP VAR_POP", "1", _variance("var_pop"), "n", kind="aggregate"),
    *rows("SKEW", "1", _collected("sf.skew"), "f", kind="aggregate"),
    *rows("KURTOSIS", "1", _collected("sf.kurtosis"), "f", kind="aggregate"),
    *rows("CORR COVAR_POP COVAR_SAMP", "2", "=", "f", kind="aggregate"),
    *rows("REGR_AVGX REGR_AVGY REGR_INTERCEPT REGR_R2 REGR_SLOPE", "2", "=", "f", kind="aggregate"),
    *rows("REGR_SXX REGR_SXY REGR_SYY", "2", "=", "f", kind="aggregate"),
    *rows("REGR_COUNT", "2", "regr_count", "f", kind="aggregate", result=INTEGER),
    *rows("LISTAGG", "1-2", _listagg, "t", kind="aggregate"),
    *rows("ARRAY_AGG ARRAYAGG", "1", _array_agg, "v", kind="aggregate", returns="ARRAY"),
    *rows("ARRAY_UNIQUE_AGG", "1", _array_unique_agg, "v", kind="aggregate", returns="ARRAY"),
    *rows("OBJECT_AGG", "2", _object_agg, "tv", kind="aggregate", returns="OBJECT"),
    *rows("MIN_BY", "2-3", _extreme_by(descending=False), kind="aggregate"),
    *rows("MAX_BY", "2-3", _extreme_by(descending=True), kind="aggregate"),
    *rows("HASH_AGG", "1-", _hash_agg, kind="aggregate", result=INTEGER),
    *rows("BOOLAND_AGG", "1", "bool_and", "b", kind="aggregate"),
    *rows("BOOLOR_AGG", "1", "bool_or", "b", kind="aggregate"),
    *rows("BOOLXOR_AGG", "1", _boolxor, "b", kind="aggregate"),
    *rows("BITAND_AGG BIT_AND_AGG", "1", _bits("bit_and"), "i", kind="aggregate", result=INTEGER),
    *rows("BITOR_AGG BIT_OR_AGG", "1", _bits("bit_or"), "i", kind="aggregate", result=INTEGER),
    *rows("BITXOR_AGG BIT_XOR_AGG", "1", _bits("bit_xor"), "i", kind="aggregate", result=INTEGER),
    *rows("GROUPING GROUPING_ID", "1-", _grouping, kind="aggregate", result=INTEGER),
]

WINDOWS: list[SqlFunction] = [
    *rows("ROW_NUMBER", "0", "row_number", kind="window", result=INTEGER),
    *rows("RANK", "0", "rank", kind="window", result=INTEGER),
    *rows("DENSE_RANK", "0", "dense_rank", kind="window", result=INTEGER),
    *rows("PERCENT_RANK", "0", "percent_rank", kind="window"),
    *rows("CUME_DIST", "0", "cume_dist", kind="window"),
    *rows("NTILE", "1", "ntile", kind="window", integers=(0,), result=INTEGER),
    *rows("LAG", "1-3", "lag", kind="window", integers=(1,)),
    *rows("LEAD", "1-3", "lead", kind="window", integers=(1,)),
    *rows("FIRST_VALUE", "1", "first_value", kind="window", whole_frame=True),
    *rows("LAST_VALUE", "1", "last_value", kind="window", whole_frame=True),
    *rows("NTH_VALUE", "2", "nth_value", kind="window", integers=(1,), whole_frame=True),
    *rows("RATIO_TO_REPORT", "1", _ratio, "n", kind="window"),
    *rows("CONDITIONAL_TRUE_EVENT", "1", _count_if, kind="window", result=INTEGER),
]

TABLES: list[SqlFunction] = [
    *rows("FLATTEN", "1-5", "sf.flatten", kind="table"),
    *rows("GENERATOR", "0-2", "", kind="table"),
]
