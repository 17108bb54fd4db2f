"""What all dashboards are made of: variables, links, and four kinds of panels.

A panel answers one question: its title names the thing, its description says what to make of it. Colours are names of Grafana's
palette, which both its themes have.
"""

import typing

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG = "mldebug"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
GOOD, ODD, BAD = "green", "orange", "red"
STEPS = "suffix: steps/s"  # Grafana has no unit for it

Query = tuple[str, str]
"""PromQL, and the legend: labels in double braces; of a table, the title of the column."""
Panel = Builder[model.Panel]
P = typing.TypeVar("P", timeseries.Panel, stat.Panel, table.Panel, statetimeline.Panel)
UNSEEN = ("Time", "__name__", "job", "alertstate")  # columns that say nothing


# --- a dashboard -------------------------------------------------------------------------------


def board(uid: str, title: str, about: str, *variables: Builder[model.VariableModel]) -> dashboard.Dashboard:  # fmt: skip
    """An empty one that looks at the last hour and leads to its neighbours."""
    others = dashboard.DashboardLink("mldebug").type(model.DashboardLinkType.DASHBOARDS)
    made = dashboard.Dashboard(title).uid(uid).description(about).tags([TAG]).readonly()
    made.time("now-1h", "now").refresh("30s").timezone("browser")
    made.tooltip(model.DashboardCursorSync.CROSSHAIR)
    made.link(others.tags([TAG]).as_dropdown(True).keep_time(True).include_vars(True))
    kind = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    made.variables([kind, *variables, place("docs", "https://docs.example.org/mldebug"),
                    place("reports", "https://reports.example.org")])  # fmt: skip
    return made


def place(name: str, url: str) -> dashboard.ConstantVariable:
    """Where pages are, without a slash at the end: to be set once, before or after the import."""
    return dashboard.ConstantVariable(name).value(url)


def choice(name: str, label: str, query: str, *, many: bool = True) -> dashboard.QueryVariable:
    """Values of a label in the time that is shown: a run that has ended is still there."""
    made = dashboard.QueryVariable(name).label(label).query(query).datasource(SOURCE)
    made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made.sort(model.VariableSort.NATURAL_ASC)
    return made.multi(True).include_all(True).all_value(".*") if many else made


NODE = choice("node", "Node", 'label_values(up{job="mldebug"}, instance)')
GPU = choice("gpu", "GPU", 'label_values(mldebug_gpu_up{instance=~"$node"}, gpu)')
RUN = choice(
    "run", "Run", "label_values(mldebug_run_across_nodes_info, run_across_nodes)", many=False
)
# each node has an id of its own for that run
OWN = choice("own", "Its ids", 'label_values(mldebug_run_across_nodes_info{run_across_nodes="$run"}, run)').hide(model.VariableHide.HIDE_VARIABLE)  # fmt: skip


class Incidents(model.AnnotationQuery):
    """Open incidents as regions; the SDK has no words for the formats of Prometheus."""

    def to_json(self) -> dict[str, object]:
        text = '<a href="{{url}}">Report {{report}}</a>'
        formats = {"titleFormat": "{{kind}} {{verdict}}", "textFormat": text, "tagKeys": "run"}
        return super().to_json() | formats | {"step": "15s", "useValueForTime": False}


class IncidentsBuilder(Builder[model.AnnotationQuery]):
    """The annotation of a dashboard; `chosen` matchers of labels.

    The link is made in PromQL: Grafana puts variables into the query of an annotation, and not into its text.
    """

    def __init__(self, chosen: str = "") -> None:
        opened = f"max by (run, report, kind, verdict) (mldebug_incident_open_info{{{chosen}}})"
        self._expression = f'label_replace({opened}, "url", "${{reports}}/$1", "report", "(.+)")'

    def build(self) -> Incidents:
        return Incidents(name="Incidents", datasource=SOURCE, icon_color=BAD, expr=self._expression)


# --- links -------------------------------------------------------------------------------------


def link(title: str, url: str) -> dashboard.DashboardLink:
    """One that opens beside the dashboard."""
    made = dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK)
    return made.url(url).target_blank(True)


def runbook(alert: str) -> dashboard.DashboardLink:
    """The page that says what to do."""
    return link(f"What to do: {alert}", f"${{docs}}/runbooks/{alert}.md")


def page(title: str, name: str) -> dashboard.DashboardLink:
    """A page of the documentation."""
    return link(title, f"${{docs}}/{name}.md")


def to_board(uid: str, label: str, variable: str) -> str:
    """The URL of another dashboard for the value of a label in the same row."""
    value = f"var-{variable}=${{__data.fields.{label}}}"
    return f"/d/{uid}?${{datasource:queryparam}}&{value}&${{__url_time_range}}"


# --- panels ------------------------------------------------------------------------------------


def number(title: str, about: str, unit: str, query: str, *steps: tuple[float, str]) -> stat.Panel:
    """One figure now, on a colour by the steps, above its own past; the first step also counts below it."""
    panel = _dressed(stat.Panel(), title, about, unit).height(4).span(6)
    panel.thresholds(_thresholds(*steps)).with_target(_target((query, ""), 0))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(looks.BigValueGraphMode.AREA)
    return panel.color_mode(looks.BigValueColorMode.BACKGROUND_SOLID if steps else looks.BigValueColorMode.VALUE)  # fmt: skip


def lines(title: str, about: str, unit: str, *queries: Query, limits: tuple[tuple[float, str], ...] = (),
          ceiling: float | None = None) -> timeseries.Panel:  # fmt: skip
    """Figures over time, 0 in view; `limits` are drawn as dashed lines, `ceiling` is the top of the axis."""
    panel = _dressed(timeseries.Panel(), title, about, unit).height(8).span(12).axis_soft_min(0)
    for place_, query in enumerate(queries):
        panel.with_target(_target(query, place_))
    panel.fill_opacity(10).show_points(looks.VisibilityMode.NEVER)
    panel.tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI))
    panel.legend(common.VizLegendOptions().show_legend(True).placement(looks.LegendPlacement.BOTTOM)
                 .display_mode(looks.LegendDisplayMode.LIST))  # fmt: skip
    if limits:
        panel.thresholds(_thresholds(*limits))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED))  # fmt: skip
    return panel if ceiling is None else panel.axis_soft_max(ceiling)


def stacked(title: str, about: str, unit: str, query: Query) -> timeseries.Panel:
    """Parts of a whole over time."""
    panel = lines(title, about, unit, query).fill_opacity(60)
    return panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL))


def rows(title: str, about: str, unit: str, *queries: Query, **renamed: str) -> table.Panel:
    """What is so now, one row for each set of labels; several queries need the same labels. `renamed` label -> column."""
    panel = _dressed(table.Panel(), title, about, unit).height(8).span(12).no_value("none")
    for place_, query in enumerate(queries):
        panel.with_target(_target(query, place_).instant().format(PromQueryFormat.TABLE))
    titles = {_value(place_, len(queries)): value for place_, (_, value) in enumerate(queries)}
    panel.with_transformation(model.DataTransformerConfig("merge", options={}))
    hidden = {"excludeByName": dict.fromkeys(UNSEEN, True), "renameByName": titles | renamed}
    return panel.with_transformation(model.DataTransformerConfig("organize", options=hidden))


def plain(panel: table.Panel, *columns: str) -> table.Panel:
    """Columns that do not have the unit of the others."""
    for column in columns:
        panel.override_by_name(column, [model.DynamicConfigValue("unit", "none")])
    return panel


def states(title: str, about: str, query: Query, *named: tuple[str, str]) -> statetimeline.Panel:
    """A bar for each series whose colour is its state; `named` name and colour of the values 0, 1, …"""
    panel = _dressed(statetimeline.Panel(), title, about, "none").height(8).span(12)
    by_name = {
        str(value): model.ValueMappingResult(text=name, color=color, index=value)
        for value, (name, color) in enumerate(named)
    }
    panel.mappings([model.ValueMap(options=by_name)]).with_target(_target(query, 0))
    return panel.show_value(looks.VisibilityMode.NEVER).merge_values(True)


def _dressed(panel: P, title: str, about: str, unit: str) -> P:
    panel.title(title).description(about).unit(unit).datasource(SOURCE)
    return panel


def _target(query: Query, place_: int) -> prometheus.Dataquery:
    expression, legend = query
    made = prometheus.Dataquery().expr(expression).ref_id("ABCDEFG"[place_]).datasource(SOURCE)
    return made.range().legend_format(legend or "__auto")


def _value(place_: int, of: int) -> str:
    """How Grafana calls the values of a query in a table that is merged."""
    return "Value" if of == 1 else f"Value #{'ABCDEFG'[place_]}"


def _thresholds(*steps: tuple[float, str]) -> dashboard.ThresholdsConfig:
    (_, first), *more = steps or ((0.0, GOOD),)
    levels = [model.Threshold(color=first, value=None), *(model.Threshold(value, color) for value, color in more)]  # fmt: skip
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(levels)
