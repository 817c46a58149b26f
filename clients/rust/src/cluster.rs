//! Calls of a node to its coordinator, and what an operator asks about a cluster.

use crate::client::Client;
use crate::error::Result;
use forebay_protocol::members::{CatalogAnswer, CatalogRequest, NodeHeartbeat, NodeHeartbeatAnswer, NodeList, SealDecision, SealProposal};
use forebay_protocol::paths;
use http::Method;

impl Client {
    /// Tells the coordinator that a node is alive and what it holds. Needs the operator's token.
    pub async fn node_heartbeat(&self, heartbeat: &NodeHeartbeat) -> Result<NodeHeartbeatAnswer> {
        Ok(self.caller().document(&self.caller().call(Method::POST, paths::NODE_HEARTBEAT)?.json(heartbeat)?).await?.0)
    }

    /// Asks which attempt is the content of a partition. Idempotent. Needs the operator's token.
    pub async fn decide_seal(&self, proposal: &SealProposal) -> Result<SealDecision> {
        Ok(self.caller().document(&self.caller().call(Method::POST, paths::SEAL_DECISION)?.json(proposal)?).await?.0)
    }

    /// One call of the catalog that nodes share. Needs the operator's token.
    pub async fn shared_catalog(&self, request: &CatalogRequest) -> Result<CatalogAnswer> {
        Ok(self.caller().document(&self.caller().call(Method::POST, paths::NODE_CATALOG)?.json(request)?).await?.0)
    }

    /// The nodes that the coordinator knows. Needs the operator's token.
    pub async fn nodes(&self) -> Result<NodeList> {
        Ok(self.caller().document(&self.caller().call(Method::GET, paths::NODES)?).await?.0)
    }
}
