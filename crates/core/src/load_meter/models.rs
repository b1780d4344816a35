//! Loom model of the feed (`make loom`): a request that comes while the reader stops the listing of its meter is not lost.

use loom::thread;

use super::*;

struct NoTime;

impl Clock for NoTime {
    fn now(&self) -> Moment {
        Moment::ZERO
    }
}

#[test]
fn a_request_that_comes_while_its_meter_is_read_shows_in_that_reading_or_a_later_one() {
    loom::model(|| {
        let feed = Arc::<LoadFeed>::default();
        let key = LoadKey::Route("shop/cart".into());
        let meter = LoadMeter::new(key, Arc::default(), Arc::new(NoTime), Arc::clone(&feed));
        drop(meter.begin());
        feed.read();
        let request = {
            let meter = Arc::clone(&meter);
            thread::spawn(move || drop(meter.begin()))
        };
        let mut seen = feed.read().last().map_or(0, |sample| sample.requests);
        request.join().unwrap();
        for _ in 0..2 {
            seen = feed.read().last().map_or(seen, |sample| sample.requests);
        }
        assert_eq!(seen, 2);
        assert!(feed.read().is_empty(), "idle again");
    });
}
