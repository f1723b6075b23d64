//! Owners and groups in replies: `NAME@DOMAIN` where the host knows a name and `idmap_domain` is set, else a number.
//!
//! Attributes are described with remembered names only, since a lock may be held meanwhile. [`Names::learn`] then asks
//! the user database for the rest, and the attributes are described once more.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use forebay_vfs::Wait;
use forebay_wire::nfs4::{Bitmap, Fattr, Nfsstat4, attr};

use super::compound::{Context, Stop};
use super::place::may_wait;
use crate::lookups::Unanswered;
use crate::owners::Whose;

/// The attributes that name users or groups.
const NAMED: Bitmap = Bitmap::of(&[attr::OWNER, attr::OWNER_GROUP, attr::ACL]);

/// The names in one reply.
pub(super) struct Names {
    /// The domain of names; `None` for numbers only.
    domain: Option<Arc<str>>,
    /// False if the owner is a number in this reply.
    owner: bool,
    /// False if the group is a number in this reply.
    group: bool,
    /// The users and groups whose names are not remembered.
    unknown: RefCell<Vec<(Whose, u32)>>,
    /// True once the database was asked: what it has not told stays a number.
    is_asked: Cell<bool>,
}

impl Names {
    /// Returns the names for a reply with these attributes.
    pub(super) fn asked(cx: &Context<'_>, request: &Bitmap) -> Self {
        let domain = if (*request & NAMED).is_empty() { None } else { cx.shared.owners.domain() };
        Names { domain, owner: true, group: true, unknown: RefCell::default(), is_asked: Cell::new(false) }
    }

    /// Returns the names for a comparison with these attributes: a number is compared with a number.
    pub(super) fn as_sent(cx: &Context<'_>, sent: &Fattr<'_>) -> Self {
        let names = Self::asked(cx, &sent.mask);
        let values = sent.attributes().ok();
        let is_name = |text: Option<&[u8]>| text.is_some_and(|text| text.contains(&b'@'));
        let owner = is_name(values.as_ref().and_then(|values| values.owner));
        let group = is_name(values.as_ref().and_then(|values| values.owner_group));
        Names { owner, group, ..names }
    }

    /// Writes the owner or the group of an object, and returns the text. It is valid until the next call.
    pub(super) fn write<'a>(
        &self,
        cx: &Context<'_>,
        whose: Whose,
        number: u32,
        text: &'a mut Text,
    ) -> &'a [u8] {
        let is_named = if whose == Whose::User { self.owner } else { self.group };
        let found = if is_named { self.find(cx, whose, number) } else { None };
        match found {
            Some((name, domain)) => text.set_name(&name, domain),
            None => text.set(number),
        }
    }

    /// Returns a user or group of an access control list.
    pub(super) fn in_list(&self, cx: &Context<'_>, whose: Whose, number: u32) -> String {
        match self.find(cx, whose, number) {
            Some((name, domain)) => format!("{name}@{domain}"),
            None => number.to_string(),
        }
    }

    /// Returns the remembered name of a user or group, with the domain.
    fn find(&self, cx: &Context<'_>, whose: Whose, number: u32) -> Option<(Arc<str>, &str)> {
        let domain = self.domain.as_deref()?;
        match cx.shared.owners.name(number, whose, cx.call.peer.addr.ip(), Wait::No) {
            Ok(name) => name.map(|name| (name, domain)),
            Err(_) => {
                let mut unknown = self.unknown.borrow_mut();
                if !self.is_asked.get() && !unknown.contains(&(whose, number)) {
                    unknown.push((whose, number));
                }
                None
            }
        }
    }

    /// Asks the user database for the names that were not remembered. Returns true if the attributes have to be
    /// described once more. A database in trouble is not waited for: the reply has numbers. Fails with NFS4ERR_DELAY
    /// while another request asks for such a name.
    pub(super) fn learn(&self, cx: &Context<'_>) -> Result<bool, Stop> {
        let unknown = self.unknown.take();
        if unknown.is_empty() {
            return Ok(false);
        }
        may_wait(cx)?;
        self.is_asked.set(true);
        for (whose, number) in unknown {
            if cx.shared.owners.is_troubled() {
                break;
            }
            let found = cx.shared.owners.name(number, whose, cx.call.peer.addr.ip(), Wait::Yes);
            if found == Err(Unanswered::Busy) && !cx.shared.owners.is_troubled() {
                return Err(Stop::Fail(Nfsstat4::Delay));
            }
        }
        Ok(true)
    }
}

/// A buffer for an owner: a number in decimal digits, or a name with its domain.
#[derive(Default)]
pub(super) struct Text {
    digits: [u8; 10],
    name: String,
}

impl Text {
    /// Writes a number, and returns its decimal digits.
    fn set(&mut self, mut number: u32) -> &[u8] {
        let mut first = self.digits.len();
        loop {
            first -= 1;
            self.digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return &self.digits[first..];
            }
        }
    }

    /// Writes a name with its domain, and returns the text.
    fn set_name(&mut self, name: &str, domain: &str) -> &[u8] {
        self.name.clear();
        self.name.extend([name, "@", domain]);
        self.name.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_decimal_numbers_or_names() {
        let mut text = Text::default();
        for number in [0, 7, 10, 1000, 65_534, u32::MAX, 5] {
            assert_eq!(text.set(number), number.to_string().as_bytes());
            assert_eq!(text.set_name("jo", "example.org"), b"jo@example.org");
        }
    }
}
