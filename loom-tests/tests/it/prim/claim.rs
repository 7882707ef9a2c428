//! Does exactly one sharer of a value get it, and does the one that drops it see that sharer's
//! writes?

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use prim::claim::Claim;

#[test]
fn one_of_several_gets_it() {
    loom::model(|| {
        let claim = Arc::new(Claim::new(UnsafeCell::new(0)));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let claim = claim.clone();
                thread::spawn(move || use_it(&claim))
            })
            .collect();
        let mut uses = usize::from(use_it(&claim));
        for other in others {
            uses += usize::from(other.join().unwrap());
        }
        assert_eq!(uses, 1);
        let mut claim = Arc::try_unwrap(claim).ok().expect("the last one");
        // SAFETY: nobody else has it any more; the model reports one who does.
        claim.get_mut().with(|value| assert_eq!(unsafe { *value }, 1));
    });
}

fn use_it(claim: &Claim<UnsafeCell<i32>>) -> bool {
    let Some(value) = claim.claim() else { return false };
    // SAFETY: it is ours alone; the model reports anybody else's access.
    value.with_mut(|value| unsafe { *value += 1 });
    true
}
