//! Certificates for servers of tests.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate for this machine with its key, and the certificate of the authority that signed it.
pub fn certificates() -> [String; 3] {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "an authority of a test");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().expect("entropy");
    let authority_pem = authority.self_signed(&authority_key).expect("signed").pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("entropy");
    let own = CertificateParams::new(["127.0.0.1".to_owned(), "::1".to_owned()]).expect("addresses");
    [own.signed_by(&key, &issuer).expect("signed").pem(), key.serialize_pem(), authority_pem]
}
