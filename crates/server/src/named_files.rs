//! The files that the settings name: certificates, keys, tokens, keytabs and programs. A start, a reload and
//! `forebay config check` judge each of them by one function, so that all give one sentence.

use forebay_config::Settings;
use forebay_tls::Credentials;

use crate::error::Error;
use crate::in_time::in_time;
use crate::start::kerberos_settings;

/// The advice for a check if a file system does not answer.
const CHECK_AGAIN: &str = "check again once it answers, or name other files";

/// Returns what is wrong with the files that the settings name, one sentence each. Asks no server and changes nothing.
pub fn check_files(settings: &Settings) -> Vec<String> {
    let settings = settings.clone();
    let place = "a file that the configuration names";
    in_time(place, CHECK_AGAIN, move || mistakes(&settings)).unwrap_or_else(|silent| vec![silent])
}

fn mistakes(settings: &Settings) -> Vec<String> {
    let tls = credentials(settings).err().map(|error| error.to_string());
    let token = settings.http.as_ref().and_then(|http| forebay_http::token(http).err());
    let kerberos =
        settings.takes_kerberos().then(|| forebay_nfs::check_kerberos(&kerberos_settings(settings)));
    let kerberos = kerberos.and_then(Result::err).map(|error| Error::from(error).to_string());
    let notify = settings.notify.iter().filter_map(forebay_notify::check);
    tls.into_iter().chain(token).chain(kerberos).chain(notify).collect()
}

/// Returns the credentials that the settings name, or none if TLS is not served.
///
/// # Errors
/// [`Error::Tls`]: a file is missing or unusable.
pub(crate) fn credentials(settings: &Settings) -> Result<Option<Credentials>, Error> {
    let files = settings.tls.as_ref();
    let load =
        files.map(|files| Credentials::load(&files.certificate, &files.key, files.client_ca.as_deref()));
    Ok(load.transpose()?)
}
