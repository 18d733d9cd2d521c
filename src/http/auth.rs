//! Who asks: the holder of a tenant's key, or of the operator's token.
//!
//! A key names its tenant and its id, so that one object is asked and no index of keys is needed:
//! `dmk_TENANT.KEY.SECRET`. Its tenant knows the digest of the whole text and nothing more.

use data_encoding::BASE64URL_NOPAD;

use crate::ports::{Fault, TenantAnswer, TenantCall, World};
use crate::words::{KeyId, TenantId, sha256, sha256_hex};

use super::Config;
use super::headers::Headers;
use super::problem::{FORBIDDEN, Problem};

/// The tenant of a local server.
const DEV_TENANT: &str = "dev";
const KEY_PREFIX: &str = "dmk_";

/// What a key may do: each role may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looks.
    Reader,
    /// Signals, cancels, pauses and retries runs, decides approvals, settles dead letters.
    Operator,
    /// Defines tools and agents, starts runs, hands in envelopes.
    Developer,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Reader, Self::Operator, Self::Developer, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Developer => "developer",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }

    /// Refuses a role below `least`.
    pub fn require(self, least: Self) -> Result<(), Problem> {
        if self >= least {
            return Ok(());
        }
        let needed = least.as_str();
        Err(Problem::new(
            FORBIDDEN,
            format!("this needs a key with the role {needed} or above"),
        )
        .with("role_needed", needed))
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    pub tenant_id: TenantId,
    pub role: Role,
    /// The id of the key, for the record of who decided what.
    pub name: String,
}

/// Whose key a request bears, and what it may do.
pub async fn tenant<W: World>(
    world: &W,
    config: &Config,
    headers: Headers<'_>,
) -> Result<Caller, Problem> {
    let key = bearer(headers).ok_or_else(Problem::unauthorized)?;
    if config
        .dev_api_key
        .as_deref()
        .is_some_and(|dev| same_secret(dev, key))
    {
        return Ok(Caller {
            tenant_id: dev_tenant().ok_or_else(Problem::unauthorized)?,
            role: Role::Admin,
            name: "dev".to_owned(),
        });
    }
    let (tenant_id, key_id) = read_key(key).ok_or_else(Problem::unauthorized)?;
    let call = TenantCall::CheckKey {
        key_id: key_id.clone(),
        secret_sha256: sha256_hex(key.as_bytes()),
    };
    match world.tenant(&tenant_id, &call).await? {
        TenantAnswer::Key { role } => match Role::parse(&role) {
            Some(role) => Ok(Caller {
                tenant_id,
                role,
                name: key_id.to_string(),
            }),
            None => Err(Fault::new("read a role", tenant_id.as_str(), "it is unknown").into()),
        },
        _ => Err(Problem::unauthorized()),
    }
}

/// Lets the operator pass.
pub fn operator(config: &Config, headers: Headers<'_>) -> Result<(), Problem> {
    let token = config
        .admin_token
        .as_deref()
        .filter(|token| !token.is_empty());
    match (token, bearer(headers)) {
        (Some(token), Some(sent)) if same_secret(token, sent) => Ok(()),
        _ => Err(Problem::unauthorized()),
    }
}

/// The tenant that the configuration makes.
pub fn dev_tenant() -> Option<TenantId> {
    TenantId::parse(DEV_TENANT).ok()
}

/// The text of a key.
pub fn key_text(tenant_id: &TenantId, key_id: &KeyId, secret: [u8; 32]) -> String {
    let id = key_id.as_str().trim_start_matches(KeyId::PREFIX);
    format!(
        "{KEY_PREFIX}{tenant_id}.{id}.{}",
        BASE64URL_NOPAD.encode(&secret)
    )
}

/// Which key a text is, if it has the form of one.
fn read_key(text: &str) -> Option<(TenantId, KeyId)> {
    // From the end: a tenant's id may hold dots.
    let mut parts = text.strip_prefix(KEY_PREFIX)?.rsplitn(3, '.');
    let secret = parts.next()?;
    let key_id = KeyId::parse(&format!("{}{}", KeyId::PREFIX, parts.next()?)).ok()?;
    let tenant_id = TenantId::parse(parts.next()?).ok()?;
    (secret.len() == 43).then_some((tenant_id, key_id))
}

fn bearer(headers: Headers<'_>) -> Option<&str> {
    let (scheme, key) = headers.once("authorization")?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

/// Whether two secrets are the same, in a time that tells nothing of either: their digests have one
/// length, and where those differ says nothing of where the secrets do.
fn same_secret(a: &str, b: &str) -> bool {
    let (a, b) = (sha256(a.as_bytes()), sha256(b.as_bytes()));
    let differing = a
        .iter()
        .zip(b)
        .fold(0, |differing, (a, b)| differing | (a ^ b));
    std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Timestamp;

    #[test]
    fn a_key_tells_whose_it_is() {
        let tenant_id = TenantId::parse("acme.eu-1").unwrap();
        let key_id = KeyId::new(Timestamp::from_ms(1), [3; 10]);
        let text = key_text(&tenant_id, &key_id, [7; 32]);
        assert!(text.starts_with("dmk_acme.eu-1.0000"), "{text}");
        assert_eq!(read_key(&text), Some((tenant_id, key_id)));
        for wrong in [
            "".to_owned(),
            "dmk_".to_owned(),
            "dev-key".to_owned(),
            text.replace("dmk_", "dmx_"),
            text.replace("acme", "ACME"),
            text.replace("acme", "_acme"),
            format!("{text}x"),
            text.replace(".0000", ".x000"),
        ] {
            assert_eq!(read_key(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_bearer_is_read_strictly() {
        for (sent, key) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("Bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            let list = vec![("authorization".to_owned(), sent.to_owned())];
            assert_eq!(bearer(Headers(&list)), key, "{sent}");
        }
        let twice = vec![("authorization".to_owned(), "Bearer a".to_owned()); 2];
        assert_eq!(bearer(Headers(&twice)), None);
    }

    #[test]
    fn an_empty_token_opens_nothing() {
        let list = vec![("authorization".to_owned(), "Bearer x".to_owned())];
        for token in [None, Some(String::new())] {
            let config = Config {
                admin_token: token,
                ..Config::default()
            };
            assert!(operator(&config, Headers(&list)).is_err());
        }
        let config = Config {
            admin_token: Some("x".into()),
            ..Config::default()
        };
        assert!(operator(&config, Headers(&list)).is_ok());
    }

    #[test]
    fn roles_are_in_order() {
        assert!(Role::ALL.is_sorted());
        for role in Role::ALL {
            assert_eq!(Role::parse(role.as_str()), Some(role));
        }
        assert!(Role::Reader.require(Role::Operator).is_err());
        assert!(Role::Admin.require(Role::Operator).is_ok());
        assert_eq!(Role::parse("root"), None);
    }
}
