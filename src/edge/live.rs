//! An answer that goes on while the client reads it.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures::channel::oneshot;
use futures::future::{Either, select};
use wasm_bindgen::{JsValue, prelude::wasm_bindgen};

use crate::http::event_stream::{Broken, EventStream};

use super::guard::{self, guarded};
use super::js;
use super::world::Edge;

/// What the entry module asks for the rest of a body. Once it is over, or the client has gone, it
/// holds nothing: JavaScript may keep it for as long as it likes.
#[wasm_bindgen]
pub struct LiveBody {
    inner: AssertUnwindSafe<RefCell<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Taken out while it is asked.
    rest: Option<(EventStream, Edge)>,
    /// Dropped to call off what is being waited for.
    asking: Option<oneshot::Sender<()>>,
}

impl LiveBody {
    pub fn new(stream: EventStream, world: Edge) -> Self {
        let inner = Inner {
            rest: Some((stream, world)),
            asking: None,
        };
        Self {
            inner: AssertUnwindSafe(RefCell::new(inner)),
        }
    }

    async fn ask(&self) -> Result<Option<String>, Broken> {
        let (asking, called_off) = oneshot::channel();
        let taken = {
            let mut inner = self.inner.borrow_mut();
            inner.asking = Some(asking);
            inner.rest.take()
        };
        let Some((mut stream, world)) = taken else {
            return Ok(None);
        };
        let piece = match select(pin!(stream.next(&world)), called_off).await {
            Either::Left((piece, _)) => piece?,
            Either::Right(_) => return Ok(None),
        };
        if piece.is_some() {
            self.inner.borrow_mut().rest = Some((stream, world));
        }
        Ok(piece)
    }
}

#[wasm_bindgen]
impl LiveBody {
    /// The next piece of text; undefined at the end.
    pub async fn next(&self) -> Result<JsValue, JsValue> {
        AssertUnwindSafe(async {
            match guarded("a stream", self.ask()).await {
                Ok(Ok(piece)) => Ok(piece.map_or(JsValue::UNDEFINED, JsValue::from)),
                Ok(Err(Broken)) | Err(guard::Panicked) => Err(js::error("the stream broke")),
            }
        })
        .await
    }

    /// Nobody reads any more: what is being waited for is given up at once.
    pub fn cancel(&self) {
        let given_up = self.inner.try_borrow_mut().map(|mut inner| {
            inner.rest = None;
            inner.asking.take()
        });
        drop(given_up);
    }
}
