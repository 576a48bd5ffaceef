"""What the dashboards are made of, by Grafana's own builders, so that they fit its schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Panel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

type Unit = Literal["short", "s", "percentunit", "bytes", "ops", "none"]

SOURCE = DataSourceRef("prometheus", "${datasource}")
_HEIGHT = 8


@dataclass(frozen=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: name of each series, with labels as {{label}}.
    """

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Shown:
    """One panel.

    Attributes:
        kind: lines over time; the same stacked; the last number; or the last value of each series, as a table.
        width: in columns, of which a row has 24.
    """

    title: str
    queries: Sequence[Query]
    text: str = ""
    unit: Unit = "short"
    kind: Literal["lines", "stacked", "number", "table"] = "lines"
    width: int = 8


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Builds a variable whose values are those of a label."""
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query({"query": query, "refId": name})
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def build(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[dashboard.QueryVariable],
    rows: Sequence[tuple[str, Sequence[Shown]]],
) -> dashboard.Dashboard:
    """Builds a dashboard of rows of panels."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags(["gymtrain"]).editable()
    made.refresh("30s").time("now-6h", "now").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    made.with_variable(source.current(VariableOption(text="default", value="default")))
    for one in variables:
        made.with_variable(one)
    number = 0
    for heading, panels in rows:
        number += 1
        made.with_row(dashboard.Row(heading).id(number))
        for shown in panels:
            number += 1
            made.with_panel(_panel(shown, number))
    return made


def _panel(shown: Shown, number: int) -> Builder[Panel]:
    made: timeseries.Panel | stat.Panel | table.Panel
    if shown.kind == "number":
        last = common.ReduceDataOptions().calcs(["lastNotNull"])
        made = stat.Panel().reduce_options(last).graph_mode(common_models.BigValueGraphMode.NONE)
    elif shown.kind == "table":
        made = table.Panel()
    else:
        made = timeseries.Panel().show_points(common_models.VisibilityMode.NEVER).fill_opacity(10)
        legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST).show_legend(True)
        made.legend(legend.placement(common_models.LegendPlacement.BOTTOM))
        made.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        if shown.kind == "stacked":
            made.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL)).fill_opacity(40).min(0)
    made.id(number).title(shown.title).datasource(SOURCE).unit(shown.unit)
    made.span(shown.width).height(4 if shown.kind == "number" else _HEIGHT)
    if shown.text:
        made.description(shown.text)
    for place, query in enumerate(shown.queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + place)).datasource(SOURCE)
        if query.legend:
            target.legend_format(query.legend)
        if shown.kind == "table":
            target.instant().format(PromQueryFormat.TABLE)
        else:
            target.range()
        made.with_target(target)
    return made
