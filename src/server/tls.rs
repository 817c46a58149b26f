//! TLS: certificate and key from PEM files, HTTP/2 and HTTP/1.1 by ALPN.

use super::ServerError;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Where the certificate and its key lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM file with the certificate chain, the server's own first.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads the files. Blocking; called once, at start. Errors: [`ServerError::Tls`] when a file
    /// cannot be read, holds nothing of its kind, or key and certificate do not belong together.
    pub fn acceptor(&self) -> Result<TlsAcceptor, ServerError> {
        let refuse = |what: &'static str, source: Box<dyn std::error::Error + Send + Sync>| ServerError::Tls { what, source };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect)
            .map_err(|error| refuse("the certificate cannot be read", error.into()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| refuse("the key cannot be read", error.into()))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| refuse("certificate and key cannot be used", error.into()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn files(certificate: &str, key: &str) -> (tempfile::TempDir, TlsFiles) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let files = TlsFiles { certificate: directory.path().join("cert.pem"), key: directory.path().join("key.pem") };
        for (path, text) in [(&files.certificate, certificate), (&files.key, key)] {
            std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
        }
        (directory, files)
    }

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_certificate_with_its_key_is_taken() {
        let (certificate, key) = pair();
        let (_directory, files) = files(&certificate, &key);
        assert!(files.acceptor().is_ok());
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let ((certificate, _), (_, key)) = (pair(), pair());
        let (_directory, files) = files(&certificate, &key);
        assert!(matches!(files.acceptor(), Err(ServerError::Tls { .. })));
    }

    #[test]
    fn the_message_of_a_missing_key_does_not_name_the_path() {
        let (certificate, _) = pair();
        let (_directory, files) = files(&certificate, "nothing");
        let message = files.acceptor().err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(message, "TLS: the key cannot be read");
    }
}
