//! The contents of the metrics port.

use crate::instance::inner::Inner;
use crate::observe::metrics::{Body, Content, Phase, page};
use crate::report::collect::{collect, phase};

/// Returns the content that somebody has asked for.
pub(crate) fn body(inner: &Inner, content: Content) -> Body {
    match content {
        Content::Metrics => collect(inner).prometheus().into(),
        // Plain structs serialise.
        Content::Json => serde_json::to_string(&collect(inner)).unwrap_or_default().into(),
        Content::Page => Body { is_well: true, text: page::PAGE.into() },
        // Without a lock, and without a look at pools of users.
        Content::Health => {
            let phase = phase(inner);
            let text = match phase {
                Phase::Running => "running\n",
                Phase::Finalizing => "finalizing\n",
                _ => "finalized\n",
            };
            Body { is_well: phase == Phase::Running, text: text.into() }
        }
    }
}
