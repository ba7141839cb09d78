//! `fault-rank`: one rank of a job of the fault harness.

use burn_nccl_tests::faulty_job::FaultyJob;

fn main() {
    let argument = std::env::args().nth(1).expect("a job as JSON is the only argument");
    let job: FaultyJob = serde_json::from_str(&argument).expect("the argument is a job");
    let end = job.play();
    println!("{}", serde_json::to_string(&end).expect("the end of a job is plain data"));
}
