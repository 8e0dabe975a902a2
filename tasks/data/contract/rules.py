"""What no row of the user's data may do, as SQL over the view `samples`.

Invariant: a rule is about one row alone, and its SQL is true of a row that breaks it, whatever nulls are in it. The
rules stand in the order in which a person would want to hear of them.
"""

from dataclasses import replace

from storage.datasets import SPLITS
from storage.errors import ContractError
from tasks.configuration.run import DataConfig
from tasks.configuration.split import USUAL_SPLIT_NAMES
from tasks.data.rule import Rule, not_null
from tasks.data.sources.columns import NUMBER_ROWS
from tasks.data.sources.label_registry import form_of
from tasks.data.sources.messages import broken_contract
from tasks.data.sql import literal
from tasks.data.text_pairs import text_sql_of_each

# Something to see: a text of spaces, controls and invisible characters is an empty one.
VISIBLE = r"[^\s\p{Z}\p{C}]"
SHORTEN = 'raise data.max_tokens, or set data.too_long = "truncate" to keep the first tokens of such a row'


def row_rules(config: DataConfig) -> list[Rule]:
    """Every rule that one row can break by itself, the most basic first."""
    rules = [not_null(config.id, "id", f"fill it, or {NUMBER_ROWS}")] if config.id else []
    rules += _text_rules(config) if config.text else []
    rules += form_of(config).rules(config)
    rules += _weight_rules(config.weight) if config.weight else []
    for index, column in enumerate(config.numeric):
        remedy = "correct these values, or write them as null to have them imputed"
        rules.append(Rule(column, "infinite", "finite numbers", f"isinf(n{index})", f"n{index}", remedy))
    rules += _token_rules(config, config.tokens) if config.tokens else []
    names = {rule.name for rule in rules}  # the split's column may be the label's
    return rules + [rule for rule in _split_rules(config) if rule.name not in names]


def given_split_sql(config: DataConfig) -> str:
    """SQL of the index of the split that a row's value names; null where it names none."""
    cases = []
    for split in config.split.splits_of_source:
        values = config.split.values_of(split)
        value = "CAST(split_key AS VARCHAR)"
        if values is None:
            value, values = f"lower(trim({value}))", list(USUAL_SPLIT_NAMES[split])
        cases.append(f"WHEN {value} IN ({', '.join(map(literal, values))}) THEN {SPLITS.index(split)}")
    return f"CASE {' '.join(cases)} END"


def kept_tokens_sql(config: DataConfig) -> str:
    """SQL of a row's tokens without those that the attention mask hides."""
    if not config.attention_mask:
        return "tokens"
    return "list_where(tokens, list_transform(mask, lambda m: coalesce(m, 0) <> 0))"


def too_long(config: DataConfig, found: str) -> ContractError:
    """The error for rows of more than `max_tokens` tokens; `found` is how many, and which."""
    return broken_contract(
        f"Column {config.body!r} has rows that are too long.",
        f"at most data.max_tokens = {config.max_tokens} tokens in a row",
        found,
        SHORTEN,
    )


def _weight_rules(column: str) -> list[Rule]:
    remedy = "correct these weights; a row that is not to count has 0"
    broken = "weight < 0 OR isinf(weight)"
    return [
        not_null(column, "weight", "give these rows a weight, such as 1, or take data.weight out"),
        Rule(column, "no weight", "finite numbers of at least 0", broken, "weight", remedy),
    ]


def _split_rules(config: DataConfig) -> list[Rule]:
    """Rules for the column that splits the rows; in a source of a split's own it decides nothing."""
    if config.split.column is None:
        return []
    rules = [not_null(config.split.column, "split_key", 'fill it, or split by id (data.split.by = "id")')]
    rules += [_names_a_split(config, config.split.column)] if config.split.by == "given" else []
    if not config.split.has_own_sources:
        return rules
    return [replace(rule, broken=f"own_split IS NULL AND {rule.broken}") for rule in rules]


def _names_a_split(config: DataConfig, column: str) -> Rule:
    splits = config.split.splits_of_source
    meant = [f"{split} ({', '.join(config.split.values_of(split) or USUAL_SPLIT_NAMES[split])})" for split in splits]
    return Rule(
        column,
        "names no split",
        f"a value that means {', '.join(meant)}",
        f"split_key IS NOT NULL AND {given_split_sql(config)} IS NULL",
        "split_key",
        "correct these values, or set what they mean in data.split.train_values, validation_values or test_values",
    )


def _text_rules(config: DataConfig) -> list[Rule]:
    remedy = "drop these rows, or fill in their text"
    expected = "a text in every row"
    # Of two texts both are missing where one is.
    rules = [Rule(config.body, "missing text (null or NaN)", expected, "text IS NULL", "NULL", remedy)]
    for column, text in text_sql_of_each(config.text_columns).items():
        visible = f"NOT regexp_matches({text}, {literal(VISIBLE)})"
        nan = f"{remedy}: 'nan' is what a missing value becomes when it is turned into text"
        rules.append(Rule(column, "empty text", expected, visible, text, remedy))
        rules.append(Rule(column, "NaN as text", expected, f"{text} IN ('nan', 'NaN')", text, nan))
    return rules


def _token_rules(config: DataConfig, column: str) -> list[Rule]:
    """Rules for token input. Id 0 is padding: it may stand under an attention mask of 0 and nowhere else."""
    remedy = "correct these rows in what tokenised the texts"
    rules = [
        not_null(column, "tokens", remedy),
        Rule(
            column,
            "null among the tokens",
            "a token id at every position",
            "list_count(tokens) < len(tokens)",
            "tokens[:8]",
            remedy,
        ),
    ]
    if config.attention_mask:
        mask, shown = config.attention_mask, "len(mask) || ' and ' || len(tokens)"
        rules += [
            not_null(mask, "mask", remedy),
            Rule(
                mask,
                "of another length than the tokens",
                f"as many entries as {column} has",
                "len(mask) <> len(tokens)",
                shown,
                remedy,
            ),
            Rule(
                mask,
                "other than 0 and 1",
                "only 0 and 1",
                "list_count(mask) < len(mask) OR list_min(mask) < 0 OR list_max(mask) > 1",
                "mask[:8]",
                remedy,
            ),
        ]
    kept, top = kept_tokens_sql(config), config.vocabulary_size
    rules.append(Rule(column, "no tokens", "at least one token that counts", f"len({kept}) = 0", "tokens[:8]", remedy))
    rules.append(
        Rule(
            column,
            "token ids out of range",
            f"ids from 1 to {top - 1}; 0 is padding and must be masked",
            f"list_min({kept}) < 1 OR list_max({kept}) >= {top}",
            f"'ids from ' || list_min({kept}) || ' to ' || list_max({kept})",
            "raise data.vocabulary_size to the tokenizer's, name data.attention_mask if padding is marked there, "
            "or shift the ids by one if 0 is a real token",
        ),
    )
    if config.too_long == "error":
        rules.append(
            Rule(
                column,
                "too long",
                f"at most data.max_tokens = {config.max_tokens} tokens",
                f"len({kept}) > {config.max_tokens}",
                f"len({kept}) || ' tokens'",
                SHORTEN,
            )
        )
    return rules
