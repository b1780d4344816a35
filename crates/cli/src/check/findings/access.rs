//! Reports missing permissions of the gateway, each with the rule that grants it.

use rouse_kube::client::permissions::{Permission, Requirement};
use rouse_kube::survey::{Account, PermissionCheck, PermissionScope, Survey, SurveyError};

use super::super::report::{Check, Section};
use super::{Advice, LISTED, listed, unknown};

/// The section about the permissions of the gateway.
pub(super) fn section(survey: &Survey, advice: &Advice) -> Section {
    let account = survey.account.as_ref();
    let name = match account {
        Some(account) => format!("Permissions of {account}"),
        None => "Your own permissions, because there is no gateway".to_owned(),
    };
    let grants = match &survey.grants {
        Ok(grants) => grants,
        Err(unseen) => return Section::new(name, vec![unasked(unseen, account, advice)]),
    };
    let (named, watched): (Vec<&PermissionCheck>, Vec<&PermissionCheck>) =
        grants.iter().partition(|grant| matches!(grant.place, PermissionScope::Object { .. }));
    let mut checks: Vec<Check> = watched.into_iter().map(|grant| check(grant, account, advice)).collect();
    let denied: Vec<&PermissionCheck> =
        named.iter().copied().filter(|grant| !grant.denied.is_empty()).collect();
    if !named.is_empty() && denied.is_empty() {
        let count = named.len();
        checks.push(Check::pass(format!("list, watch the named ConfigMaps and Secrets ({count})")));
    }
    checks.extend(listed(
        &denied,
        |grant| check(grant, account, advice),
        |more| {
            Check::warning(format!("{more} more objects cannot be read"))
                .because(format!("only {LISTED} are listed"))
        },
    ));
    Section::new(name, checks)
}

fn unasked(unseen: &SurveyError, account: Option<&Account>, advice: &Advice) -> Check {
    let name = "the permissions of the gateway can be checked";
    match (unseen, account) {
        (SurveyError::Forbidden(words), Some(account)) => {
            let (place, review) = match &advice.namespace {
                Some(namespace) => (format!(" in {namespace}"), "localsubjectaccessreviews"),
                None => (String::new(), "subjectaccessreviews"),
            };
            Check::warning(name).because(format!("not checked: {words}")).next(format!(
                "check as a user who may create {review}{place}, or list them:\n\
                 {} auth can-i --list --as={account}",
                advice.kubectl
            ))
        }
        _ => unknown(name, unseen, advice),
    }
}

/// The check of one permission.
pub(super) fn check(grant: &PermissionCheck, account: Option<&Account>, advice: &Advice) -> Check {
    let permission = grant.permission;
    let place = match &grant.place {
        PermissionScope::Everywhere => "in all namespaces".to_owned(),
        PermissionScope::Namespace(namespace) => format!("in {namespace}"),
        PermissionScope::Object { namespace, name } => format!("{name} in {namespace}"),
    };
    let name = format!("{} {} {place}", permission.verbs.join(", "), permission.name());
    if grant.denied.is_empty() {
        return Check::pass(name);
    }
    let verbs: Vec<&str> = grant.denied.iter().map(|denied| denied.verb).collect();
    let mut detail = format!("may not {}. {}", verbs.join(" and "), permission.why);
    if let Requirement::Optional { lost } = permission.need {
        detail = format!("{detail}\nwithout it {lost}");
    }
    // Authorizers give a reason only sometimes.
    if let Some(denied) = grant.denied.iter().find(|denied| !denied.reason.is_empty()) {
        detail = format!("{detail}\nthe API server says: {}", denied.reason);
    }
    let check = match permission.need {
        Requirement::Required => Check::failure(name),
        Requirement::Optional { .. } => Check::warning(name),
    };
    check.because(detail).next(remedy(grant, &verbs, account, advice))
}

/// The next step that grants the missing permission.
fn remedy(grant: &PermissionCheck, verbs: &[&str], account: Option<&Account>, advice: &Advice) -> String {
    let kubectl = &advice.kubectl;
    let rule = rule(grant.permission, verbs);
    match (account, &grant.place) {
        (None, _) => format!("ask for a role with the rule {rule}"),
        (Some(account), PermissionScope::Object { namespace, name }) => {
            let (verbs, resource) = (verbs.join(","), grant.permission.resource);
            let granted = format!("rouse-{resource}-{name}");
            let Account { namespace: space, name: account_name } = account;
            format!(
                "{kubectl} -n {namespace} create role {granted} --verb={verbs} --resource={resource} \
                 --resource-name={name}\n\
                 {kubectl} -n {namespace} create rolebinding {granted} --role={granted} --serviceaccount={space}:{account_name}"
            )
        }
        (Some(_), PermissionScope::Namespace(namespace)) => {
            format!("add to its Role in {namespace} the rule {rule}\nor install again, {}", again(advice))
        }
        (Some(_), PermissionScope::Everywhere) => {
            format!("add to its ClusterRole the rule {rule}\nor install again, {}", again(advice))
        }
    }
}

/// The command that installs again, as the end of a sentence.
fn again(advice: &Advice) -> String {
    let install = advice.install();
    if advice.there.gateway { install } else { format!("by\n{install}") }
}

/// The rule as a role has it.
fn rule(permission: &Permission, verbs: &[&str]) -> String {
    let (group, resource, verbs) = (permission.group, permission.resource, verbs.join(", "));
    format!("{{apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: [{verbs}]}}")
}
