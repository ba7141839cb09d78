//! Reading the command line, with a configuration file under it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use burn_nccl::launch::restart_count;
use burn_nccl_records::checkpoint::Checkpoint;
use clap::error::{ContextKind, ContextValue, ErrorKind as ClapError};
use clap::{ArgAction, ArgMatches, Command, Parser};
use serde_json::{Map, Value};

use crate::config::RunConfig;
use crate::error::{RecipeError, Result, split_remedy};
use crate::ownership::Job;
use crate::resume::{ResumeChoice, locate, newest_of, open_checkpoint};
use crate::warning::warn_once;

const NOT_UNDERSTOOD: &str = "the options were not understood";
const SEE_HELP: &str = "run with --help for all options";

/// Reads the options of `P` from `args`, whose first is the program.
///
/// The file that `--config` names is put in front of the other arguments as if it had been typed, and a later
/// argument replaces an earlier one. So a file has the keys, the checks and the messages of the command line, for
/// every recipe's own options too. A recipe without `--config` takes no file.
///
/// Ranks that a launcher has started again go on from the newest checkpoint of `--out`, whatever `--resume` says, if the
/// run in that folder is their own job's.
///
/// A run that `--resume` continues has the options of the checkpoint's run under all others; then `--resume` is the
/// folder of that one checkpoint, or `anew`.
///
/// `--help` and `--version` are printed and end the process.
///
/// # Errors
/// A usage error for what is unknown, unreadable or out of range.
pub fn parse<P: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<P> {
    let command = P::command().args_override_self(true);
    let mut args: Vec<OsString> = args.into_iter().collect();
    let mut matches = command.clone().try_get_matches_from(&args).map_err(refused)?;
    let start = args.len().min(1);
    if let Some(file) = matches.try_get_one::<PathBuf>("config").ok().flatten().cloned() {
        args.splice(start..start, read_file(&file, &command)?);
        matches = matched(&command, &args, &file)?;
    }
    let asked = matches.try_get_one::<ResumeChoice>("resume").ok().flatten();
    let out = matches.try_get_one::<PathBuf>("out").ok().flatten().map(PathBuf::as_path);
    let resume = asked.map(|asked| after_restart(asked, out, restart_count())).transpose()?;
    if resume.as_ref() == Some(&ResumeChoice::Anew) {
        args.extend(["--resume".into(), ResumeChoice::Anew.argument()]);
        matches = command.clone().try_get_matches_from(&args).map_err(refused)?;
    } else if let Some(resume) =
        resume.filter(|resume| matches!(resume, ResumeChoice::Auto | ResumeChoice::Folder(_)))
    {
        let recipe = command.get_name().trim_start_matches("recipe-");
        let found = locate(&resume, out, recipe)?;
        let checkpoint = found.as_deref().map(open_checkpoint).transpose()?;
        let resolved = match &checkpoint {
            Some(checkpoint) => {
                args.splice(start..start, saved_options(checkpoint, &command));
                ResumeChoice::Folder(checkpoint.path().into())
            }
            None => ResumeChoice::Anew,
        };
        // The last of several counts.
        args.extend(["--resume".into(), resolved.argument()]);
        matches = matched(&command, &args, &found.unwrap_or_default())?;
    }
    P::from_arg_matches(&matches).map_err(refused)
}

/// What ranks go on from that have been started again `restarts` times after they were `asked` to go on from something.
fn after_restart(asked: &ResumeChoice, out: Option<&Path>, restarts: usize) -> Result<ResumeChoice> {
    let Some(out) = out.filter(|_| restarts > 0) else {
        if restarts > 0 {
            warn_once("the ranks were started again without --out, which would tell them what to go on from");
        }
        return Ok(asked.clone());
    };
    // A run that was there before the job is refused at each start, and not only at the first.
    if !Job::current().is_some_and(|job| job.owns(out)) {
        return Ok(asked.clone());
    }
    Ok(match (newest_of(out)?, asked) {
        (Some(newest), _) => ResumeChoice::Folder(newest),
        // The run that failed before its first checkpoint begins again in its folder.
        (None, ResumeChoice::None | ResumeChoice::Auto) => ResumeChoice::Anew,
        (None, asked) => asked.clone(),
    })
}

/// The arguments, some of which are from `file`.
fn matched(command: &Command, args: &[OsString], file: &Path) -> Result<ArgMatches> {
    command.clone().try_get_matches_from(args).map_err(|error| {
        let refused = refused(error);
        RecipeError { what: format!("{NOT_UNDERSTOOD} (with {})", file.display()), ..refused }
    })
}

/// The options of the run that wrote a checkpoint, as arguments. Another recipe may have written it, so that what this
/// one has no option for is left out.
fn saved_options(checkpoint: &Checkpoint, command: &Command) -> Vec<OsString> {
    let keys = checkpoint.state().config.as_object().into_iter().flatten();
    let keys = keys.filter(|(key, _)| RunConfig::KEYS.contains(&key.as_str()));
    keys.filter_map(|(key, value)| argument(key, value, command).ok().flatten()).collect()
}

/// A configuration file as arguments.
fn read_file(file: &Path, command: &Command) -> Result<Vec<OsString>> {
    let what = format!("cannot use the configuration file {}", file.display());
    let unreadable =
        |cause: String| RecipeError::usage(&what, cause, "give a JSON file such as a run's config.json");
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    let keys: Map<String, Value> =
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    let mut args = Vec::new();
    for (key, value) in &keys {
        args.extend(argument(key, value, command).map_err(|cause| {
            RecipeError::usage(&what, cause, format!("keys are the long options without dashes; {SEE_HELP}"))
        })?);
    }
    Ok(args)
}

/// One key and value as an argument; none where the value says that the option is not given.
fn argument(key: &str, value: &Value, command: &Command) -> Result<Option<OsString>, String> {
    // The first parse has made sure that `--config` can be read; a file that names another file has no effect.
    let long = key.replace('_', "-");
    let known = command.get_arguments().find(|argument| argument.get_long() == Some(long.as_str()));
    let Some(known) = known.filter(|_| long != "config") else {
        return Err(format!("unknown key `{key}`"));
    };
    let is_flag = matches!(known.get_action(), ArgAction::SetTrue);
    match value {
        Value::Null => Ok(None),
        Value::Bool(given) if is_flag => Ok(given.then(|| format!("--{long}").into())),
        Value::String(text) if !is_flag => Ok(Some(format!("--{long}={text}").into())),
        Value::Number(number) if !is_flag => Ok(Some(format!("--{long}={number}").into())),
        _ => {
            let expected = if is_flag { "true or false" } else { "a string or a number" };
            Err(format!("key `{key}` is {value}, expected {expected}"))
        }
    }
}

/// What clap refuses, in the recipe's form.
fn refused(error: clap::Error) -> RecipeError {
    // The last is a recipe of several commands, called without any.
    if matches!(
        error.kind(),
        ClapError::DisplayHelp
            | ClapError::DisplayVersion
            | ClapError::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        error.exit();
    }
    if let (Some(source), Some(argument)) = (std::error::Error::source(&error), argument_of(&error)) {
        let text = source.to_string();
        let (cause, remedy) = split_remedy(&text);
        return RecipeError::usage(NOT_UNDERSTOOD, format!("{argument}: {cause}"), remedy);
    }
    if let (ClapError::InvalidValue, Some(ContextValue::Strings(values))) =
        (error.kind(), error.get(ContextKind::ValidValue))
        && let (Some(value), Some(argument)) = (error.get(ContextKind::InvalidValue), argument_of(&error))
    {
        let cause = format!("{argument}: `{value}` is not one of its values");
        return RecipeError::usage(NOT_UNDERSTOOD, cause, format!("use {}", values.join(", ")));
    }
    let text = error.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    // Where the first line announces a list, the list says what is meant.
    let list = lines.map(str::trim).take_while(|line| first.ends_with(':') && !line.is_empty());
    let cause = std::iter::once(first).chain(list).collect::<Vec<_>>().join(" ");
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    RecipeError::usage(NOT_UNDERSTOOD, cause, tip.unwrap_or(SEE_HELP))
}

fn argument_of(error: &clap::Error) -> Option<String> {
    error.get(ContextKind::InvalidArg).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{DistributedOptions, TrainOptions};

    #[derive(Parser, Debug)]
    struct Options {
        #[command(flatten)]
        train: TrainOptions,
        #[command(flatten)]
        distributed: DistributedOptions,
    }

    fn parsed(args: &[&str]) -> Result<Options> {
        parse(std::iter::once("recipe").chain(args.iter().copied()).map(OsString::from))
    }

    fn with_file(json: &str, args: &[&str]) -> Result<Options> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.json");
        std::fs::write(&file, json).unwrap();
        let file = file.to_str().unwrap().to_owned();
        parsed(&[&["--config", &file], args].concat())
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_defaults() {
        let json = r#"{"epochs": 7, "batch_size": 4, "lr": 0.5, "model": "resnet18", "no-overlap": true,
                       "max-steps": null}"#;
        let options = with_file(json, &["--epochs", "3", "--lr=0.25"]).unwrap();
        assert_eq!((options.train.epochs, options.train.batch_size, options.train.lr), (3, 4, 0.25));
        assert_eq!((options.train.model.name(), options.train.max_steps), ("resnet18", None));
        assert!(options.distributed.no_overlap);
        assert_eq!(options.train.weight_decay, 5e-4);
    }

    #[test]
    fn a_value_that_is_none_of_an_options_values_is_refused_with_those() {
        let error = parsed(&["--norm", "group"]).unwrap_err();
        assert!(error.cause.contains("--norm") && error.cause.contains("`group`"), "{error}");
        assert_eq!((error.remedy.as_str(), error.exit_code()), ("use batch, sync-batch", 2));
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = with_file(r#"{"epoch": 7}"#, &[]).unwrap_err();
        assert_eq!((error.cause.as_str(), error.exit_code()), ("unknown key `epoch`", 2));
        let error = with_file(r#"{"config": "x"}"#, &[]).unwrap_err();
        assert_eq!(error.cause, "unknown key `config`");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        let error = with_file(r#"{"epochs": [1]}"#, &[]).unwrap_err();
        assert_eq!(error.cause, "key `epochs` is [1], expected a string or a number");
        let error = with_file(r#"{"no-overlap": 1}"#, &[]).unwrap_err();
        assert_eq!(error.cause, "key `no-overlap` is 1, expected true or false");
    }

    #[test]
    fn a_value_out_of_range_names_the_option_and_the_remedy() {
        for error in [parsed(&["--batch-size", "0"]), with_file(r#"{"batch-size": 0}"#, &[])] {
            let error = error.unwrap_err();
            assert!(error.cause.starts_with("--batch-size <N>: `0`"), "{error}");
            assert_eq!(error.remedy, "give a whole number of at least 1");
        }
        let error = parsed(&["--model", "resnet51"]).unwrap_err();
        assert_eq!(error.cause, "--model <MODEL>: unknown model `resnet51`");
        assert_eq!(error.remedy, "use resnet18, resnet34, resnet50, resnet101 or resnet152");
    }

    #[test]
    fn an_unknown_option_is_named_with_the_nearest_known_one() {
        let error = parsed(&["--epoch", "3"]).unwrap_err();
        assert_eq!((error.cause.as_str(), error.exit_code()), ("unexpected argument '--epoch' found", 2));
        assert!(error.remedy.contains("--epochs"), "{error}");
    }

    #[test]
    fn a_file_that_is_missing_or_no_json_is_named() {
        let error = parsed(&["--config", "/nowhere/c.json"]).unwrap_err();
        assert_eq!(error.what, "cannot use the configuration file /nowhere/c.json");
        assert_eq!(with_file("{", &[]).unwrap_err().exit_code(), 2);
    }
}
