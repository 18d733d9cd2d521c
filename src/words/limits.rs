//! Every bound of the system in one list, each with its reason. Sizes are encoded UTF-8 bytes.

use super::{DurationMs, Timestamp};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const DAY: i64 = 24 * 60 * MINUTE;

/// A request body. A parsed body takes many times its text, and a Worker has 128 MB for all requests.
pub const REQUEST_BODY_BYTES_MAX: usize = MIB;
/// An input, a result, a signal's payload: two of them and their frame still fit one row.
pub const VALUE_BYTES_MAX: usize = 512 * KIB;
/// A definition (tool, agent, plan): it is copied into every run that uses it.
pub const DEFINITION_BYTES_MAX: usize = 256 * KIB;
/// An envelope above this travels by reference: a queue bills each 64 KB begun, and refuses more
/// than [`MESSAGE_BYTES_MAX`].
pub const MESSAGE_BYTES_SAFE: usize = 60_000;
/// The size at which the platform's queue refuses a message.
pub const MESSAGE_BYTES_MAX: usize = 128_000;
/// One cell or row of SQLite in a Durable Object, below the platform's 2 MB.
pub const ROW_BYTES_MAX: usize = 1_900_000;
/// The log of one run: it is folded in memory when its object wakes.
pub const LOG_BYTES_MAX: usize = 32 * MIB;

/// Steps of a plan: each has a place in every fold and a few entries in the log.
pub const PLAN_STEPS_MAX: usize = 500;
/// Nesting of outside JSON; readers recurse, and the stack of a wasm module is 1 MiB.
pub const JSON_DEPTH_MAX: usize = 128;
/// Nesting of what the system itself stored: an outside value within the frames put around it.
pub const JSON_STORED_DEPTH_MAX: usize = 192;
/// Flaws named in one answer: enough to mend a document, too few to make the answer a burden.
pub const VIOLATIONS_MAX: usize = 32;
/// A JSON pointer in an answer; a longer one names the nearest place above that is within.
pub const POINTER_BYTES_MAX: usize = 1024;
/// Envelopes in one request: the contract's number.
pub const ENVELOPES_PER_REQUEST_MAX: usize = 100;
/// Tags of one run: all of them are read for each row that a list examines.
pub const TAGS_MAX: usize = 32;
/// A tag's value, likewise.
pub const TAG_VALUE_BYTES_MAX: usize = 256;
/// Items of a list when the caller names no number.
pub const LIST_LIMIT_DEFAULT: usize = 50;
/// Items of a list at most: a page of full records stays within a few megabytes.
pub const LIST_LIMIT_MAX: usize = 200;

/// Signals of one run that nothing has waited for yet, and the bytes of their payloads: all of them
/// are in memory with the run.
pub const MAILBOX_SIGNALS_MAX: usize = 1_000;
/// As [`MAILBOX_SIGNALS_MAX`].
pub const MAILBOX_BYTES_MAX: usize = 8 * MIB;
/// Runs below one run, on all levels together: children start children.
pub const TREE_RUNS_MAX: i64 = 1_000;

/// Workers lost in one step before it is `undeliverable`: a step that kills its worker each time
/// must end, and a lost worker is no attempt of the tool.
pub const DELIVERY_LOSSES_MAX: u32 = 10;
/// The highest `max_attempts`: each attempt is entries of the log.
pub const MAX_ATTEMPTS_MAX: u32 = 1_000;
/// Steps of one run in flight when the agent names no number.
pub const MAX_PARALLEL_DEFAULT: usize = 8;

/// One HTTP call of a tool when the tool names no time.
pub const TOOL_TIMEOUT_DEFAULT: DurationMs = DurationMs::from_ms(30 * SECOND);
/// One HTTP call at most: a queue consumer is ended after 15 minutes.
pub const TOOL_TIMEOUT_MAX: DurationMs = DurationMs::from_ms(10 * MINUTE);
/// The wait for a callback when the tool names no time.
pub const CALLBACK_TIMEOUT_DEFAULT: DurationMs = DurationMs::from_ms(DAY);
/// The wait for a callback at most.
pub const CALLBACK_TIMEOUT_MAX: DurationMs = DurationMs::from_ms(365 * DAY);
/// A `Retry-After` at most; beyond it the sender is taken to be wrong, not patient.
pub const RETRY_AFTER_MS_MAX: i64 = 365 * DAY;

/// An `Idempotency-Key`: part of an index.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// How long an `Idempotency-Key` is remembered at least: the contract's number.
pub const IDEMPOTENCY_RETENTION_MS: i64 = 7 * DAY;

/// A sent form of the approval page: a person types far less; what is larger goes through the API.
pub const APPROVAL_FORM_BYTES_MAX: usize = 256 * KIB;
/// Inputs of that form, a checkbox each: what a person can still go through.
pub const APPROVAL_INPUTS_MAX: usize = 300;
/// Bytes of all texts that a schema puts on that page: a small one can repeat a long text by reference.
pub const APPROVAL_TEXT_BYTES_MAX: usize = 256 * KIB;
/// Arguments on that page, a line for each member: indentation can make a deep value many times its
/// size. Beyond it they stand on one line.
pub const APPROVAL_PRETTY_BYTES_MAX: usize = MIB;
/// Characters of a decision's comment, as of the other comments in the contract.
pub const APPROVAL_COMMENT_CHARS_MAX: usize = 10_000;
/// Characters of the name that a person gives with a decision.
pub const APPROVAL_NAME_CHARS_MAX: usize = 256;

// What must hold between them; a change that breaks one does not compile.
const _: () = {
    assert!(
        MESSAGE_BYTES_SAFE < 64_000,
        "a message by value is one billing unit"
    );
    assert!(
        MESSAGE_BYTES_SAFE < MESSAGE_BYTES_MAX,
        "a message by value fits the queue"
    );
    assert!(
        VALUE_BYTES_MAX < REQUEST_BODY_BYTES_MAX,
        "a value of full size can be sent"
    );
    assert!(
        APPROVAL_FORM_BYTES_MAX < REQUEST_BODY_BYTES_MAX,
        "a form of full size can be sent"
    );
    assert!(
        DEFINITION_BYTES_MAX < REQUEST_BODY_BYTES_MAX,
        "a definition of full size can be sent"
    );
    assert!(
        2 * VALUE_BYTES_MAX + DEFINITION_BYTES_MAX < ROW_BYTES_MAX,
        "an input, an output and a definition fit one row"
    );
    assert!(
        REQUEST_BODY_BYTES_MAX < ROW_BYTES_MAX,
        "a refused body can be kept as a dead letter"
    );
    assert!(
        ROW_BYTES_MAX < LOG_BYTES_MAX,
        "a log holds more than one row"
    );
    assert!(ROW_BYTES_MAX < 2_000_000, "a row fits the platform");
    assert!(
        JSON_DEPTH_MAX < JSON_STORED_DEPTH_MAX,
        "an outside value can be framed and read again"
    );
    assert!(
        LIST_LIMIT_DEFAULT <= LIST_LIMIT_MAX,
        "the default page is a permitted page"
    );
    assert!(
        TOOL_TIMEOUT_DEFAULT.ms() <= TOOL_TIMEOUT_MAX.ms(),
        "the default is permitted"
    );
    assert!(
        CALLBACK_TIMEOUT_DEFAULT.ms() <= CALLBACK_TIMEOUT_MAX.ms(),
        "the default is permitted"
    );
    assert!(
        CALLBACK_TIMEOUT_MAX.ms() <= DurationMs::MAX.ms(),
        "the longest wait can be written"
    );
    assert!(
        TOOL_TIMEOUT_MAX.ms() < CALLBACK_TIMEOUT_DEFAULT.ms(),
        "a callback outlasts its call"
    );
    assert!(
        MAX_PARALLEL_DEFAULT <= PLAN_STEPS_MAX,
        "a plan can use its parallelism"
    );
    assert!(Timestamp::MAX.ms() < 1 << 48, "any time fits a UUIDv7");
};
