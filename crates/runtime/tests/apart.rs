//! Tests of [`block_on_apart`].

use std::fs::File;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use forebay_engine::buffer::Buffer;
use forebay_runtime::{Request, Target, Work, block_on_apart, start};

#[test]
fn a_silent_device_does_not_delay_a_caller_that_has_given_it_up() {
    // A read of an empty pipe does not end before the other end is closed.
    let (read, write) = rustix::pipe::pipe().unwrap();
    let target = Arc::new(Target::new(File::from(read)));
    let result = block_on_apart(async move {
        let mut reading = start(Request::new(target, 0, Work::Read(Buffer::zeroed(1))));
        let is_silent =
            poll_fn(|context| Poll::Ready(Pin::new(&mut reading).poll(context).is_pending())).await;
        assert!(is_silent, "the read has ended");
        7
    });
    assert_eq!(result, 7);
    drop(write);
}

#[test]
#[should_panic(expected = "the future fails")]
fn a_panic_of_the_future_reaches_the_caller() {
    block_on_apart(async { panic!("the future fails") })
}
