pub(crate) fn doctor(_: &crate::args::DoctorArgs) -> anyhow::Result<crate::Exit> {
    Ok(crate::Exit::Done)
}
