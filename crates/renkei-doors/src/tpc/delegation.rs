//! GridSite delegation: SOAP 1.1 requests of version 2.0.0 of its interface, in RPC style with literal parts, by POST to
//! [`PATH`]. GET lists the user's delegations, for people.

use crate::webdav::authentication::{Client, evidence, unauthenticated};
use crate::webdav::error::problem;
use crate::webdav::multistatus::address;
use crate::webdav::request::Target;
use crate::webdav::session::Session;
use crate::webdav::xml::{Element, text};
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, LOCATION};
use axum::http::{HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use renkei_core::error::{Code, Error};
use renkei_net::identity::token::caveat::time_text;
use renkei_site::Site;
use renkei_site::tpc::Delegations;
use serde_json::json;
use std::sync::Arc;

/// The path of the endpoint.
pub(crate) const PATH: &str = "/gridsite-delegation";
/// The namespace of the interface, and that of the version before, in which `htproxyput` makes the same calls.
const NAMESPACES: [&str; 2] =
    ["http://www.gridsite.org/namespaces/delegation-2", "http://www.gridsite.org/namespaces/delegation-1"];
/// The version of the interface.
const VERSION: &str = "2.0.0";
const ENVELOPE: &str = "http://schemas.xmlsoap.org/soap/envelope/";
/// Largest request: a chain with attributes of VOMS has some 20 kB.
const MAX_BYTES: usize = 128 << 10;

/// Answers a request.
pub(crate) async fn answer(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let Some(evidence) = evidence(&client, &head) else { return unauthenticated(&site) };
    let side = site.name();
    let document = match to_bytes(body, MAX_BYTES).await {
        Ok(document) => document,
        Err(error) => return fault(&Error::new(Code::UsageInvalid, "read request", "", error)),
    };
    let work = move || {
        let session = Session::open(site, evidence)?;
        let copies = session.site.third_party_copies();
        if head.method == Method::GET {
            return list(&copies.delegations, &session);
        }
        Ok(match perform(&copies.delegations, &session, &document) {
            Ok(answer) => answer,
            Err(error) => fault(&error.at(session.access.site())),
        })
    };
    let done = client.activity.run(work).await;
    done.unwrap_or_else(|error: Error| problem(&error.at(side.as_str())))
}

/// The answer to a COPY for which its user must delegate a proxy first; the client then repeats it.
pub(super) fn wanted(target: &Target) -> Response {
    let text = |name: &HeaderName| target.headers.get(name).and_then(|text| text.to_str().ok());
    let base = format!("https://{}", text(&HOST).unwrap_or_default());
    let again = format!("{base}{}", address(&target.place, false));
    let delegate = HeaderName::from_static("x-delegate-to");
    (StatusCode::FOUND, [(LOCATION, again), (delegate, format!("{base}{PATH}"))]).into_response()
}

fn list(delegations: &Delegations, session: &Session) -> Result<Response, Error> {
    let all = delegations.list(&session.proof)?;
    let all: Vec<_> = all.iter().map(|(id, until)| json!({ "id": id, "until": time_text(*until) })).collect();
    Ok(Json(json!({ "delegations": all })).into_response())
}

fn perform(delegations: &Delegations, session: &Session, document: &[u8]) -> Result<Response, Error> {
    let call = Call::parse(document)?;
    let (proof, id) = (&session.proof, call.part("delegationID"));
    let returned = match call.method.as_str() {
        "getVersion" | "getInterfaceVersion" => VERSION.to_owned(),
        "getServiceMetadata" => String::new(),
        "getProxyReq" => delegations.ask(proof, &id)?.request,
        "renewProxyReq" => delegations.renew(proof, &id)?.request,
        "getNewProxyReq" => {
            let asked = delegations.ask(proof, "")?;
            let parts = [("proxyRequest", asked.request), ("delegationID", asked.id)];
            return Ok(call.result(&element("getNewProxyReqReturn", &parts.map(part).concat())));
        }
        "getTerminationTime" => time_text(delegations.ends(proof, &id)?),
        "putProxy" => {
            delegations.give(proof, &id, &call.part("proxy"))?;
            return Ok(call.result(""));
        }
        "destroy" => {
            delegations.destroy(proof, &id)?;
            return Ok(call.result(""));
        }
        other => {
            let cause = "the interface of GridSite delegation 2.0.0 has no such operation";
            return Err(Error::new(Code::UsageInvalid, "delegate", other, cause));
        }
    };
    let part = part((&format!("{}Return", call.method), returned));
    Ok(call.result(&part))
}

/// A call of an operation.
struct Call {
    namespace: &'static str,
    method: String,
    parts: Vec<(String, String)>,
}

impl Call {
    fn parse(document: &[u8]) -> Result<Self, Error> {
        let bad = |cause: &str| Error::new(Code::UsageInvalid, "read SOAP", "request", cause);
        let envelope = Element::parse(document)?;
        let is_soap = |element: &Element, local: &str| {
            element.name.namespace == ENVELOPE && element.name.local == local
        };
        if !is_soap(&envelope, "Envelope") {
            return Err(bad("it is no envelope of SOAP 1.1"));
        }
        let body = envelope.elements().find(|element| is_soap(element, "Body"));
        let operation =
            body.and_then(|body| body.elements().next()).ok_or_else(|| bad("its body is empty"))?;
        let namespace = NAMESPACES.into_iter().find(|one| *one == operation.name.namespace);
        let unknown = || bad(&format!("only operations in {} are known", NAMESPACES[0]));
        let namespace = namespace.ok_or_else(unknown)?;
        let parts = operation.elements().map(|part| (part.name.local.clone(), part.text()));
        Ok(Call { namespace, method: operation.name.local.clone(), parts: parts.collect() })
    }

    /// The answer with parts as markup.
    fn result(&self, parts: &str) -> Response {
        let body = format!("<d:{0}Response>{parts}</d:{0}Response>", self.method);
        soap(StatusCode::OK, self.namespace, &body)
    }

    /// The text of a part; empty if it is absent.
    fn part(&self, name: &str) -> String {
        let found = self.parts.iter().find(|(part, _)| part == name);
        found.map(|(_, text)| text.trim().to_owned()).unwrap_or_default()
    }
}

fn element(name: &str, markup: &str) -> String {
    format!("<{name}>{markup}</{name}>")
}

fn part((name, content): (&str, String)) -> String {
    element(name, &text(&content))
}

fn fault(error: &Error) -> Response {
    let message = text(&format!("{} {error}", error.code.row().id));
    let detail =
        format!("<detail><d:DelegationException><msg>{message}</msg></d:DelegationException></detail>");
    let body = format!(
        "<e:Fault><faultcode>e:Client</faultcode><faultstring>{message}</faultstring>{detail}</e:Fault>"
    );
    soap(StatusCode::INTERNAL_SERVER_ERROR, NAMESPACES[0], &body)
}

fn soap(status: StatusCode, namespace: &str, body: &str) -> Response {
    let document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<e:Envelope xmlns:e=\"{ENVELOPE}\" xmlns:d=\"{namespace}\"><e:Body>{body}</e:Body></e:Envelope>\n"
    );
    (status, [(CONTENT_TYPE, "text/xml; charset=utf-8")], Body::from(document)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(body: &str) -> Result<Call, Error> {
        let namespace = NAMESPACES[0];
        let head = format!("<E:Envelope xmlns:E='{ENVELOPE}' xmlns:n='{namespace}'>");
        let envelope = format!("{head}<E:Body>{body}</E:Body></E:Envelope>");
        Call::parse(envelope.as_bytes())
    }

    #[test]
    fn calls_are_read() {
        let read = call("<n:putProxy><delegationID> 12 </delegationID><proxy>a&#10;b</proxy></n:putProxy>");
        let read = read.unwrap();
        assert_eq!((read.method.as_str(), read.part("delegationID").as_str()), ("putProxy", "12"));
        assert_eq!((read.part("proxy").as_str(), read.part("other").as_str()), ("a\nb", ""));
    }

    #[test]
    fn garbage_is_refused() {
        for bad in ["", "x", "<a/>", "<E:x/>", "<n:putProxy>", "<m:destroy xmlns:m='urn:other'/>"] {
            assert_eq!(call(bad).map(drop).unwrap_err().code, Code::UsageInvalid, "{bad}");
        }
        for bad in [&b""[..], b"\xff", b"<a/>", b"<Envelope/>"] {
            assert_eq!(Call::parse(bad).map(drop).unwrap_err().code, Code::UsageInvalid);
        }
    }
}
