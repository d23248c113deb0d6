//! Files that this PoP does not have itself: those of an agent's storage, and of other sites, for doors.
//!
//! A place of another site is written `/SITE:/STORAGE/PATH`. The PoP asks on behalf of its user: an agent takes its word, another
//! site judges the user's certificate, as if the user had connected there. For a token of an issuer the PoP gets a certificate of
//! the other site (`certificates_elsewhere`), and connects with that as the user whom the token proves there. Rights are
//! judged by that side, and here as for any workspace. Non-goals: users of other sites (their own site asks for them), other
//! credentials without a certificate at other sites.

use super::FileService;
use super::far_sessions::Asker;
use super::workspaces::Authorised;
use crate::access::Access;
use crate::evidence::{Evidence, PopWord};
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use crate::{Context, Counters};
use renkei_core::entry::Xattr;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal, Scope};
use renkei_core::path::{Place, SiteName};
use renkei_core::wire::file::{Answer, Files, Handle, Op, Precondition};
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::on_behalf::{FilesRequest, OnBehalf};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{DialHints, Dialler};
use renkei_mover::files::remote_files::{RemoteDir, RemoteFiles};
use renkei_mover::files::workspace::Workspace;
use std::sync::Arc;

/// A place of an agent or another site, and the user on whose behalf it is asked for.
pub(super) struct FarPlace {
    served_by: Principal,
    place: Place,
    asker: Asker,
}

impl FileService {
    /// The access of a user on whose behalf a peer asks: the PoP of the user's site, or at an agent its own PoP.
    ///
    /// # Errors
    /// `NotAllowed` for other peers; those of the user's evidence and of [`Context::authorise`].
    pub fn on_behalf(&self, peer: &Peer, user: OnBehalf) -> Result<Access, Error> {
        let (user, scope) = match user {
            OnBehalf::Chain(chain) => return self.transfers.for_user(peer, chain),
            OnBehalf::Word { user, scope } => (user, scope),
        };
        let scope = scope.map(|scope| Scope::decode(&scope)).transpose()?;
        let word = PopWord { pop: peer.proof.chain().into(), user, scope };
        let proof = self.context.authenticate(Evidence::Word(word))?;
        let principal = &proof.principal;
        tracing::info!(target: "audit", %principal, via = %peer.proof.principal, "asked for");
        Ok(Access { via: Some(peer.clone()), ..self.context.authorise(&proof)? })
    }

    /// Where a place is, if it is not at this PoP.
    ///
    /// # Errors
    /// `AgentAbsent`, `NotAgentsAccount`; `NotAllowed` at another site, for all but own users with a certificate or a token of an
    /// issuer; those of `certificates_elsewhere`.
    pub(super) fn far_place(&self, access: &Access, place: &Place) -> Result<Option<FarPlace>, Error> {
        if let Some((site, place)) = place.elsewhere() {
            return self.place_at(access, &site, place).map(Some);
        }
        match self.relay.expect_storage_here(access, &place.storage) {
            Ok(()) => Ok(None),
            Err(error) if error.code == Code::WithAgent => Ok(Some(FarPlace {
                served_by: access.snapshot.agent(&place.storage),
                place: place.clone(),
                asker: Asker::For(OnBehalf::Word {
                    user: access.principal.clone(),
                    scope: access.proof.scope.as_ref().map(|scope| scope.encode()),
                }),
            })),
            Err(error) => Err(error),
        }
    }

    /// Opens a place of an agent or another site.
    pub(super) fn open_far(
        &self,
        access: &Access,
        place: &Place,
        far: FarPlace,
        need: Need,
    ) -> Result<Workspace, Error> {
        let authorised = self.authorised(access, place, Some(far.served_by.clone()))?;
        let snapshot = &access.snapshot;
        let dir = RemoteDir {
            dialler: self.dialler_as(&far, snapshot)?,
            site: far.served_by.site().clone(),
            place: far.place,
            write: need == Need::Write,
        };
        let remote = self.far_sessions.open(far.asker, dir, snapshot.config.stall_timeout())?;
        Ok(Workspace::new(Arc::new(FarFiles { context: self.context.clone(), remote, authorised })))
    }

    /// Removes at an agent or another site.
    pub(super) fn remove_far(&self, far: FarPlace, recursive: bool) -> Result<(), Error> {
        let dialler = self.dialler_as(&far, &self.context.last_snapshot())?;
        let FarPlace { served_by, place, asker } = far;
        let (site, storage, hints) = (served_by.site(), place.storage.clone(), DialHints::default());
        let mut session = dialler.connect_for(asker.user(), site, &storage, &hints)?;
        let request = match asker {
            Asker::For(user) => {
                Request::FilesFor { user, request: FilesRequest::Remove { place, recursive } }
            }
            Asker::As(_) => Request::Remove { place, recursive },
        };
        match session.ask(request)? {
            Reply::Done => Ok(()),
            other => Err(violation("remove", format_args!("{other:?}"))),
        }
    }

    /// The PoP's dialler; with the certificate that the site of the place gave it, if it asks with that.
    fn dialler_as(&self, far: &FarPlace, snapshot: &Snapshot) -> Result<Dialler, Error> {
        let dialler = self.relay.dialler(snapshot)?;
        match &far.asker {
            Asker::For(_) => Ok(dialler),
            Asker::As(credential) => {
                let at = (far.served_by.site().clone(), (**credential).clone());
                dialler.with_credentials_at(&[at])
            }
        }
    }

    /// A place of another site, for a user of this one who showed a certificate or a token of an issuer.
    fn place_at(&self, access: &Access, site: &SiteName, place: Place) -> Result<FarPlace, Error> {
        let own = &access.snapshot.site;
        let refused = |cause: String| {
            Err(Error::new(Code::NotAllowed, "open", format_args!("{site}:{place}"), cause).at(access.site()))
        };
        if site == own {
            return refused(format!("this is {own}, whose storages are named without it: {place}"));
        }
        if access.principal.user_name().is_none() || access.principal.site() != own {
            return refused(format!(
                "{own} asks other sites for its own users; connect to the PoP of {site}"
            ));
        }
        let chain = access.chain();
        let asker = match access.proof.evidence.token() {
            _ if !chain.is_empty() => Asker::For(OnBehalf::Chain(chain)),
            Some(token) if !token.is_macaroon() => {
                Asker::As(self.certificates_elsewhere.credential_from(&self.context, site, token)?)
            }
            Some(_) => return refused(format!("a macaroon of {own} is good at {own} alone")),
            None => {
                return refused(format!(
                    "at other sites than {own} a certificate is needed (`renkei login`), or a token of an issuer that {site} accepts"
                ));
            }
        };
        Ok(FarPlace { served_by: Principal::Host(site.clone()), place, asker })
    }
}

/// The files of a workspace at an agent or another site: each operation is checked, noted and passed on.
struct FarFiles {
    context: Arc<Context>,
    remote: Arc<RemoteFiles>,
    authorised: Arc<Authorised>,
}

impl FarFiles {
    fn count(&self, bytes: u64) {
        Counters::add(&self.context.counters.file_operations_total, 1);
        Counters::add(&self.context.counters.file_bytes_total, bytes);
    }
}

impl Files for FarFiles {
    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        // What a door gives up after the access ended is closed all the same.
        if !matches!(op, Op::Close(_)) {
            self.authorised.check()?;
        }
        self.authorised.audit(&op, None);
        self.count(content.len() as u64);
        self.remote.operate(op, content)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.authorised.check()?;
        let read = self.remote.read(handle, offset, buf)?;
        self.count(read as u64);
        Ok(read)
    }

    fn require(&self, draft: Handle, condition: Precondition) -> Result<(), Error> {
        self.authorised.check()?;
        self.remote.require(draft, condition)
    }

    fn describe(&self, draft: Handle, attributes: Vec<Xattr>) -> Result<(), Error> {
        self.authorised.check()?;
        self.remote.describe(draft, attributes)
    }

    fn expect_order(&self, file: Handle) {
        self.remote.expect_order(file);
    }
}
