//! Principals as users of this host.

/// The part of a principal that this host knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Local<'a> {
    User(&'a str),
    /// A host, or the NFS service of a host.
    Machine,
}

/// Returns the local part of a principal of one of `realms`. A name with an instance, such as `jo/admin`, is no user,
/// and neither is a name with escaped characters.
pub(crate) fn local_name<'a>(principal: &'a [u8], realms: &[String]) -> Option<Local<'a>> {
    let (name, realm) = std::str::from_utf8(principal).ok()?.rsplit_once('@')?;
    if !realms.iter().any(|known| known == realm) || name.contains(['\\', '@', '\0']) || name.is_empty() {
        return None;
    }
    match name.split_once('/') {
        None => Some(Local::User(name)),
        Some(("host" | "nfs", _)) => Some(Local::Machine),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_known_realms_and_machines_are_local() {
        let realms = ["EXAMPLE.ORG".to_owned(), "OTHER.ORG".to_owned()];
        let local = |principal: &'static str| local_name(principal.as_bytes(), &realms);
        assert_eq!(local("jo@EXAMPLE.ORG"), Some(Local::User("jo")));
        assert_eq!(local("jo@OTHER.ORG"), Some(Local::User("jo")));
        assert_eq!(local("host/a.example.org@EXAMPLE.ORG"), Some(Local::Machine));
        assert_eq!(local("nfs/a.example.org@EXAMPLE.ORG"), Some(Local::Machine));
        let strangers = [
            "jo@STRANGE.ORG",
            "host/a@STRANGE.ORG",
            "jo",
            "@EXAMPLE.ORG",
            "jo/admin@EXAMPLE.ORG",
            "root\\@EXAMPLE.ORG@STRANGE.ORG",
            "a\\@b@EXAMPLE.ORG",
            "jo@example.org",
        ];
        for stranger in strangers {
            assert_eq!(local(stranger), None, "{stranger}");
        }
        assert_eq!(local_name(b"\xff@EXAMPLE.ORG", &realms), None);
    }
}
