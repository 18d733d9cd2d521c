//! Texts that this service hands to others and takes back: signed, so that nobody else can make one,
//! and readable by whoever holds one, so that nothing secret is in them.
//!
//! `base64url(claims) "." base64url(HMAC-SHA256)`, with a key of its own for each use, so that a text
//! of one use is none of another.

use data_encoding::{BASE64, BASE64URL_NOPAD};
use hmac::{Hmac, KeyInit, Mac};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::words::{ApprovalId, RunId, TenantId, Timestamp};

/// A token in a path: longer ones are not looked at.
const TOKEN_BYTES_MAX: usize = 1_024;

/// The authority to report on one attempt of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallbackClaims {
    pub tenant_id: TenantId,
    pub run_id: RunId,
    pub step_index: u32,
    pub attempt: u32,
    /// Of the intent that the call is for.
    pub idempotency_key: String,
}

/// The authority to see one approval and decide it, until a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkClaims {
    pub tenant_id: TenantId,
    pub run_id: RunId,
    pub approval_id: ApprovalId,
    pub expires_at: Timestamp,
    /// For whom the link was made; without it the person says who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

/// What a signed text is good for.
pub trait Claims: Serialize + DeserializeOwned {
    /// Part of the key: never reused.
    const USE: &'static str;
}

impl Claims for CallbackClaims {
    const USE: &'static str = "dormouse callback 1";
}

impl Claims for LinkClaims {
    const USE: &'static str = "dormouse approval link 1";
}

/// Signs with its first secret and takes what any of them has signed.
#[derive(Clone)]
pub struct Signer {
    secrets: Vec<String>,
}

impl Signer {
    /// `None` where there is no secret to sign with.
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Option<Self> {
        let secrets: Vec<String> = secrets.into_iter().filter(|s| !s.is_empty()).collect();
        (!secrets.is_empty()).then_some(Self { secrets })
    }

    /// `None` where the claims cannot be written.
    pub fn sign<C: Claims>(&self, claims: &C) -> Option<String> {
        let claims = serde_json::to_vec(claims).ok()?;
        let claims = BASE64URL_NOPAD.encode(&claims);
        let mac = mac::<C>(self.secrets.first()?, &claims)?;
        let mac = BASE64URL_NOPAD.encode(&mac.finalize().into_bytes());
        Some(format!("{claims}.{mac}"))
    }

    /// The claims of a text that was signed here for this use. Compared in constant time.
    pub fn open<C: Claims>(&self, token: &str) -> Option<C> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (claims, signature) = token.split_once('.')?;
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).ok()?;
        let signed = self.secrets.iter().any(|secret| {
            mac::<C>(secret, claims).is_some_and(|mac| mac.verify_slice(&signature).is_ok())
        });
        if !signed {
            return None;
        }
        let claims = BASE64URL_NOPAD.decode(claims.as_bytes()).ok()?;
        // Signed, so it was written here.
        serde_json::from_str(std::str::from_utf8(&claims).ok()?).ok()
    }
}

/// HMAC-SHA256 over `id.seconds.body`, as Standard Webhooks signs. A secret `whsec_…` is Base64, any
/// other is taken as its bytes. `None` where it cannot be a key.
/// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
pub fn webhook_signature(secret: &str, id: &str, seconds: i64, body: &str) -> Option<Vec<u8>> {
    let key = match secret.strip_prefix("whsec_") {
        Some(encoded) => BASE64.decode(encoded.as_bytes()).ok()?,
        None => secret.as_bytes().to_vec(),
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(format!("{id}.{seconds}.{body}").as_bytes());
    Some(mac.finalize().into_bytes().to_vec())
}

fn mac<C: Claims>(secret: &str, claims: &str) -> Option<Hmac<Sha256>> {
    let mut of_use = <Hmac<Sha256>>::new_from_slice(secret.as_bytes()).ok()?;
    of_use.update(C::USE.as_bytes());
    let key = of_use.finalize().into_bytes();
    let mut mac = <Hmac<Sha256>>::new_from_slice(&key).ok()?;
    mac.update(claims.as_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> CallbackClaims {
        CallbackClaims {
            tenant_id: TenantId::parse("a.b-c").unwrap(),
            run_id: RunId::derive(Timestamp::EPOCH, "run"),
            step_index: 3,
            attempt: 2,
            idempotency_key: "0".repeat(64),
        }
    }

    fn signer(secrets: &[&str]) -> Signer {
        Signer::new(secrets.iter().map(|s| (*s).to_owned())).unwrap()
    }

    #[test]
    fn only_what_was_signed_here_opens() {
        let ours = signer(&["one"]);
        let token = ours.sign(&claims()).unwrap();
        assert_eq!(ours.open::<CallbackClaims>(&token), Some(claims()));
        assert!(token.len() < TOKEN_BYTES_MAX);
        assert_eq!(signer(&["two"]).open::<CallbackClaims>(&token), None);
        assert!(Signer::new(["".to_owned()]).is_none());
        // Every change of one character is a forgery.
        for (at, letter) in token.char_indices() {
            let other = if letter == 'A' { "B" } else { "A" };
            let mut forged = token.clone();
            forged.replace_range(at..=at, other);
            assert_eq!(ours.open::<CallbackClaims>(&forged), None, "{forged}");
        }
        for text in ["", ".", "a.b", &"x".repeat(10_000)] {
            assert_eq!(ours.open::<CallbackClaims>(text), None);
        }
    }

    #[test]
    fn a_token_of_one_use_is_none_of_another() {
        let ours = signer(&["one"]);
        let link = LinkClaims {
            tenant_id: claims().tenant_id,
            run_id: claims().run_id,
            approval_id: ApprovalId::derive(Timestamp::EPOCH, "approval"),
            expires_at: Timestamp::EPOCH,
            decided_by: None,
        };
        let token = ours.sign(&link).unwrap();
        assert_eq!(ours.open::<LinkClaims>(&token), Some(link));
        assert_eq!(ours.open::<CallbackClaims>(&token), None);
    }

    #[test]
    fn a_secret_can_be_replaced_while_its_tokens_are_out() {
        let token = signer(&["old"]).sign(&claims()).unwrap();
        let both = signer(&["new", "old"]);
        assert_eq!(both.open::<CallbackClaims>(&token), Some(claims()));
        assert_ne!(both.sign(&claims()).unwrap(), token);
    }
}
