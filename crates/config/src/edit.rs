//! Changes one setting in the text of a configuration file. Comments, order and spelling of the rest stay.

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::entries::LISTS;

/// Returns the text of a configuration file with one setting changed. `name` is the setting's table and key, such as
/// `limits.connections`, `export[/data].tls` or `export[/data].client[1].squash`; a table is chosen by its `name`,
/// by its `path` without one, or by its number from 1. `value` is a value of TOML; a string needs no quotes, and a list
/// may be written with commas.
///
/// The result may have mistakes: [`resolve_text`](crate::resolve_text) finds them.
///
/// # Errors
/// One sentence, if the text is not TOML, or if no table fits `name`.
pub fn set_in_text(text: &str, name: &str, value: &str) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        format!("the file is not TOML: {}", error.message().replace('\n', "; "))
    })?;
    let mut steps = steps(name)?;
    let Some(Step { name: key, chosen: None }) = steps.pop() else {
        return Err(format!("`{name}` names no key; write TABLE.KEY, such as limits.connections"));
    };
    let mut table = document.as_table_mut();
    for step in &steps {
        table = enter(table, step)?;
    }
    let tables = steps.iter().map(|step| format!("{}.", step.name));
    let setting = tables.chain([key.clone()]).collect::<String>();
    let mut value = parse_value(LISTS.contains(&setting.as_str()), value);
    if let Some(Item::Value(old)) = table.get(&key) {
        // The decor has the comment behind the value.
        *value.decor_mut() = old.decor().clone();
    }
    match table.get_mut(&key) {
        Some(item) if !item.is_value() => {
            return Err(format!("`{key}` is a table; name one of its keys as well"));
        }
        Some(item) => *item = Item::Value(value),
        None => drop(table.insert(&key, Item::Value(value))),
    }
    Ok(document.to_string())
}

/// One part of a name, such as `export[/data]`.
struct Step {
    name: String,
    /// The text in brackets.
    chosen: Option<String>,
}

/// Splits `export[/data].tls` into its parts. A dot in brackets separates nothing.
fn steps(name: &str) -> Result<Vec<Step>, String> {
    let mut found = Vec::new();
    let mut rest = name;
    loop {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        let (chosen, after) = match after.strip_prefix('[') {
            Some(inside) => match inside.split_once(']') {
                Some((chosen, after)) => (Some(chosen.to_owned()), after),
                None => return Err(format!("`{name}` has no bracket that closes; write export[/NAME].KEY")),
            },
            None => (None, after),
        };
        if part.is_empty() {
            return Err(format!("`{name}` names no key; write KEY or TABLE.KEY, such as limits.connections"));
        }
        found.push(Step { name: part.to_owned(), chosen });
        match after.strip_prefix('.') {
            Some(after) => rest = after,
            None if after.is_empty() => return Ok(found),
            None => return Err(format!("`{name}` is no name of a setting; write export[/NAME].KEY")),
        }
    }
}

/// Returns the table that a part of a name means. A table that exists once is made if it is missing.
fn enter<'a>(table: &'a mut Table, step: &Step) -> Result<&'a mut Table, String> {
    let Step { name, chosen } = step;
    let Some(chosen) = chosen else {
        let item = table.entry(name).or_insert_with(|| Item::Table(Table::new()));
        return match item {
            Item::Table(table) => Ok(table),
            Item::ArrayOfTables(tables) => {
                let all = names(tables);
                let only = tables.get_mut(0).filter(|_| all.len() == 1);
                let all = all.join(", ");
                only.ok_or_else(|| {
                    format!("the file has several [[{name}]]; write {name}[N] with one of: {all}")
                })
            }
            _ => Err(format!("`{name}` is not a table in the file; change it with an editor")),
        };
    };
    let Some(Item::ArrayOfTables(tables)) = table.get_mut(name) else {
        return Err(format!("the file has no [[{name}]]; add it with an editor"));
    };
    let all = names(tables);
    let number = match chosen.parse::<usize>() {
        Ok(number) => number.checked_sub(1),
        Err(_) => all.iter().position(|name| name == chosen),
    };
    number
        .and_then(|number| tables.get_mut(number))
        .ok_or_else(|| format!("no [[{name}]] of the file is {chosen}; it has: {}", all.join(", ")))
}

/// Returns the name of each table, the path of a `[[policy]]`, or the table's number from 1.
fn names(tables: &ArrayOfTables) -> Vec<String> {
    let name = |(number, table): (usize, &Table)| {
        let name = table.get("name").or(table.get("path"));
        let name = name.and_then(Item::as_str).map(str::to_owned);
        name.unwrap_or_else(|| (number + 1).to_string())
    };
    tables.iter().enumerate().map(name).collect()
}

/// Returns the value for a text that a person writes in a shell.
fn parse_value(is_list: bool, text: &str) -> Value {
    let text = text.trim();
    match text.parse::<Value>() {
        Ok(value @ Value::Array(_)) => value,
        Ok(value) if is_list => Value::Array(Array::from_iter([value])),
        _ if is_list => text.split(',').map(|item| Value::from(item.trim())).collect(),
        Ok(value @ (Value::Integer(_) | Value::Boolean(_) | Value::String(_))) => value,
        Ok(_) | Err(_) => Value::from(text),
    }
}
